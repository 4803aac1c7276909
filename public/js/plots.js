// Bars, drawn as SVG. Each plot names itself in a sentence for those who don't see it; the numbers are beside it as text, or
// in a table.

const namespace = 'http://www.w3.org/2000/svg';

// bars draws counts as bars of one colour, over a line at 0, highest at max. Its width is the box's, whatever that is, so it
// has no text in it.
export function bars(counts, max, label) {
  const width = counts.length * 10;
  const height = 100;
  const svg = element('svg', {
    class: 'bars', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label,
  });
  counts.forEach((count, i) => {
    if (count === 0) return;
    const tall = Math.max(4, (count / Math.max(max, 1)) * height);
    svg.append(element('rect', { x: i * 10 + 1, y: height - tall, width: 8, height: tall }));
  });
  svg.append(element('line', { x1: 0, x2: width, y1: height, y2: height, 'vector-effect': 'non-scaling-stroke' }));
  return svg;
}

function element(name, attributes) {
  const made = document.createElementNS(namespace, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
