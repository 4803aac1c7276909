// What is said in the same words everywhere.

export function timeOf(timestamp) {
  const date = new Date(timestamp);
  if (Number.isNaN(date.getTime())) return String(timestamp);
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString('en-GB', today ? { timeStyle: 'short' } : { dateStyle: 'medium', timeStyle: 'short' });
}

export function durationText(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return [`${Math.floor(seconds / 60)} min`, seconds % 60 && `${seconds % 60} s`].filter(Boolean).join(' ');
  const minutes = Math.ceil(seconds / 60);
  return [`${Math.floor(minutes / 60)} h`, minutes % 60 && `${minutes % 60} min`].filter(Boolean).join(' ');
}

export function windowText(seconds) {
  for (const [unit, size] of [['day', 86400], ['hour', 3600], ['minute', 60], ['second', 1]]) {
    if (seconds % size === 0) return seconds === size ? unit : `${seconds / size} ${unit}s`;
  }
  return `${seconds} seconds`;
}

export function countText(n, thing, things = `${thing}s`) {
  return `${n.toLocaleString('en-GB')} ${n === 1 ? thing : things}`;
}
