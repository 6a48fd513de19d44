/* Draws lines of spans. What is narrower than a pixel shares one with its neighbours, so the cost is the screen's. */

import { duration } from "./format.js";
import { firstAfter } from "./layout.js";

/** Alphas by name, so that neighbours of one layer are told apart. */
const TINTS = [1, 0.82, 0.92, 0.74];

/** One line of spans. `span` maps time to pixels: { from, scale, width, left }. */
export function paintLine(context, trace, line, span, top, height, options) {
  const { start, end, name, envelope } = trace;
  const { from, scale, width, left } = span;
  const until = from + width / scale;
  const { matches, selected, colour, lines, text } = options;
  context.fillStyle = colour;
  for (let index = firstAfter(line, end, from); index < line.length; ) {
    const row = line[index];
    if (start[row] > until) break;
    const x = Math.max((start[row] - from) * scale, 0), right = Math.min((end[row] - from) * scale, width);
    const dim = matches && !matches[name[row]] ? 0.16 : 1;
    if (right - x < 1.2) {
      const pixel = Math.floor(x);
      context.globalAlpha = 0.8 * dim;
      context.fillRect(left + pixel, top, 1, height);
      // On to the first span that reaches beyond this pixel; what is skipped lies under it.
      const next = firstAfter(line, end, from + (pixel + 1) / scale, index + 1);
      if (matches && dim < 1) paintSkipped(context, trace, line, index + 1, next, matches, left + pixel, top, height);
      index = Math.max(next, index + 1);
      continue;
    }
    if (envelope[row]) paintEnvelope(context, left + x, top, right - x, height, dim, lines, options.neutral);
    else {
      context.globalAlpha = TINTS[(name[row] * 7) % TINTS.length] * dim;
      context.fillRect(left + x, top, Math.max(right - x - 0.6, 0.6), height);
    }
    if (text && right - x > 28) label(context, trace, row, left + x, right - x, top, height, envelope[row] ? options.ink : options.onLayer, dim);
    if (row === selected) outline(context, left + x, top, right - x, height, options.accent);
    context.fillStyle = colour;
    index++;
  }
  context.globalAlpha = 1;
}

/** A match must not vanish under a neighbour that is none. */
function paintSkipped(context, trace, line, from, to, matches, x, top, height) {
  for (let index = from; index < to; index++) {
    if (!matches[trace.name[line[index]]]) continue;
    context.globalAlpha = 1;
    context.fillRect(x, top, 1, height);
    return;
  }
}

/** A span that merely holds others together, or waits: a frame, hardly filled, in no layer's colour. */
function paintEnvelope(context, x, top, width, height, dim, lines, neutral) {
  context.fillStyle = neutral;
  context.globalAlpha = 0.2 * dim;
  context.fillRect(x, top, width, height);
  context.globalAlpha = 0.7 * dim;
  context.lineWidth = 1;
  context.strokeStyle = lines;
  context.strokeRect(x + 0.5, top + 0.5, Math.max(width - 1, 0), height - 1);
}

function label(context, trace, row, x, width, top, height, ink, dim) {
  const room = Math.floor((width - 9) / 6.1);
  let text = trace.nameOf(row);
  if (text.length > room) text = room > 3 ? `${text.slice(0, room - 1)}…` : "";
  else if (text.length + 12 < room) text += `  ${duration(trace.lengthOf(row))}`;
  if (!text) return;
  context.globalAlpha = dim < 1 ? 0.45 : 1;
  context.fillStyle = ink;
  context.fillText(text, x + 5, top + height / 2 + 0.5);
}

function outline(context, x, top, width, height, accent) {
  context.globalAlpha = 1;
  context.lineWidth = 2;
  context.strokeStyle = accent;
  context.strokeRect(x, top, Math.max(width, 2), height);
}

/** [{ at, label }]: steps of 1, 2 or 5 times a power of ten that leave room for their labels, no two of them alike. */
export function ticks(from, until, width) {
  const rough = ((until - from) / width) * 92;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough) ?? power;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= until; at += step) found.push({ at, label: tickLabel(at, step, Math.max(Math.abs(from), Math.abs(until))) });
  return found;
}

const SIZES = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

/** One unit for all labels of a ruler, and as many digits as its steps need. */
function tickLabel(at, step, most) {
  const [unit, size] = SIZES.find(([, one]) => most >= one) ?? ["ns", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  return Math.abs(at) < step / 2 ? "0" : `${(at / size).toFixed(digits)} ${unit}`;
}

/** `ratio`: pixels for one of the page's. */
export function fit(canvas, width, height, ratio = devicePixelRatio || 1) {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
