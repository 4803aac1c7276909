// How scripts/bench talks with a limiter in another process: it sends a line for each thing to do, and gets a line of JSON back.
//   check       is the limiter right? Of four at a limit of three: {"allowed": 3, "refused": 1}
//   decide N    N decisions that are allowed, one after the other: {"nanos": [the time of each]}
//   refuse N    N that are refused
// At the end of the input the process ends.
import readline from 'node:readline';

export const subjects = 1000; // distinct keys, asked in turn

export async function serve(name, { allowed, decide, refuse }) {
  let next = 0;
  const timed = async (count, one) => {
    const nanos = new Array(count);
    for (let i = 0; i < count; i++) {
      const start = process.hrtime.bigint();
      await one(next++ % subjects);
      nanos[i] = Number(process.hrtime.bigint() - start);
    }
    return { nanos };
  };
  console.log(JSON.stringify({ ready: name }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [what, count] = line.split(' ');
    let answer;
    switch (what) {
      case 'check': {
        answer = { allowed: 0, refused: 0 };
        for (let i = 0; i < 4; i++) answer[(await allowed()) ? 'allowed' : 'refused']++;
        break;
      }
      case 'decide': answer = await timed(Number(count), decide); break;
      case 'refuse': answer = await timed(Number(count), refuse); break;
      default: throw new Error(`unknown: ${line}`);
    }
    console.log(JSON.stringify(answer));
  }
}
