/* Lanes without a span in the pass on the screen: why, and a way to the pass that has them. */

import { firstAfter } from "./layout.js";
import { h } from "./dom.js";

/** Layers that only a deep pass looks into. */
const DEEP = [3, 4];

/** `show()` puts a line into each lane that is blank now; it scrolls with the lanes. */
export function blankLanes(timeline) {
  let shown = "";
  let lines = [], said = [];
  return {
    show() {
      const { trace, pass, left } = timeline;
      const from = Math.max(timeline.from, pass.start), until = Math.min(timeline.until, pass.end);
      const found = [];
      if (trace.story.passes.length > 1 && until > from) {
        for (const { layer, group, top } of timeline.titles) {
          if (!layer || holds(trace, group, from, until) || holds(trace, group, pass.start, pass.end)) continue;
          const other = elsewhere(trace, group, pass);
          if (other) found.push({ layer, top, other: other.name, word: why(trace, layer, other) });
        }
      }
      const now = JSON.stringify([found, left, pass.name]);
      if (now === shown) return;
      shown = now;
      said = found;
      lines.forEach((line) => line.remove());
      lines = found.map((one) => line(timeline, one));
      timeline.view.append(...lines);
    },
    /** [{ word, top }]: what is said now, for where no line can be. */
    found: () => said,
  };
}

function why(trace, layer, other) {
  return DEEP.includes(layer) && other.name === "deep" ? "not probed in this pass" : `nothing seen in this ${trace.part}`;
}

function line(timeline, { layer, top, other, word }) {
  return h(
    "p.blank", { "data-layer": layer, style: { top: `${top}px`, left: `${timeline.left + 8}px` } }, `${word} `,
    h("button.link", { type: "button", click: () => timeline.state.set({ pass: other, frame: -1 }) }, `Show the ${other} ${timeline.trace.part}`),
  );
}

function holds(trace, group, from, until) {
  return group.lines.some((rows) => {
    const row = rows[firstAfter(rows, trace.end, from)];
    return row !== undefined && trace.start[row] < until;
  });
}

/** The deep pass before any other. */
function elsewhere(trace, group, pass) {
  const others = trace.story.passes.filter((one) => one !== pass && holds(trace, group, one.start, one.end));
  return others.find((one) => one.name === "deep") ?? others[0];
}
