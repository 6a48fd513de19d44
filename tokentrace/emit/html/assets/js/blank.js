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
      const { trace, left } = timeline;
      const pass = inView(timeline);
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

/** The pass that the view lies in when it touches only one; else the one that the page is about. */
function inView({ trace, pass, from, until }) {
  const touched = trace.story.passes.filter((one) => one.start < until && one.end > from);
  return touched.length === 1 ? touched[0] : pass;
}

/** The view may have moved away from a pass that the page is about already. */
function show(timeline, name) {
  timeline.state.set({ pass: name, frame: -1 });
  timeline.showPass();
}

function line(timeline, { layer, top, other, word }) {
  return h(
    "p.blank", { "data-layer": layer, style: { top: `${top}px`, left: `${timeline.left + 8}px` } }, `${word} `,
    h("button.link", { type: "button", click: () => show(timeline, other) }, `Show the ${other} ${timeline.trace.part}`),
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
