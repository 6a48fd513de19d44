/* Which line of the timeline each span is on: layers from the user to the chip, within them one block a thread. */

/** [{ layer, lines: [Int32Array of rows, by start] }]; spans of one line never overlap. */
export function layOut(trace) {
  const { count, start, end, layer } = trace;
  const order = [];
  for (let row = 0; row < count; row++) if (!trace.isMark(row)) order.push(row);
  order.sort((a, b) => start[a] - start[b] || end[b] - end[a] || a - b);
  const groups = new Map();
  for (const row of order) {
    if (!groups.has(layer[row])) groups.set(layer[row], new Map());
    const blocks = groups.get(layer[row]);
    const key = `${trace.process[row]} ${trace.thread[row]}`;
    if (!blocks.has(key)) blocks.set(key, []);
    place(blocks.get(key), row, start[row], end[row]);
  }
  const sorted = [...groups.keys()].sort((a, b) => (a === 0 ? -1 : b === 0 ? 1 : b - a));
  return sorted.map((number) => ({
    layer: number,
    lines: [...groups.get(number).values()].flat().map((line) => Int32Array.from(line.rows)),
  }));
}

/** The first line that is free: what encloses a span began before it and still holds the lines above. */
function place(lines, row, start, end) {
  for (const line of lines) {
    if (line.end <= start) {
      line.rows.push(row);
      line.end = Math.max(line.end, end);
      return;
    }
  }
  lines.push({ rows: [row], end });
}

/** Index of the first span of a line that ends after `at`. Ends rise along a line. */
export function firstAfter(line, ends, at, from = 0) {
  let low = from, high = line.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[line[middle]] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
