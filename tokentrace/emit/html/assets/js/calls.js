/* The calls of a program that made several: when each ran, its share of the whole, and a way to choose one. */

import { check, h, radios } from "./dom.js";
import { count, duration, share } from "./format.js";

/** null where the passes are one request seen several times, and not the calls of a program. */
export function callList(trace, state) {
  if (!trace.chain) return null;
  const { passes, headline } = trace.story;
  const start = trace.start[0], whole = Math.max(trace.lengthOf(0), 1);
  const buttons = passes.map((pass) => {
    const length = pass.end - pass.start;
    const part = (ns) => `${Math.min(Math.max((100 * ns) / whole, 0), 100)}%`;
    return h(
      "button.call", { type: "button", title: pass.failed ? `failed: ${pass.failed}` : pass.reply.slice(0, 300) },
      h("b", {}, pass.name), h("span.number", {}, duration(length)), h("span.number", {}, share(length, whole)),
      h("span.span", { "aria-hidden": "true" }, h("i", { style: { "margin-left": part(pass.start - start), width: part(length) } })),
      h("small", {}, pass.failed ? `failed: ${pass.failed}` : pass.reply),
    );
  });
  const list = h("div.calls", { "aria-label": "Calls" }, buttons);
  const mark = () => check(buttons, passes.findIndex((pass) => pass.name === state.pass));
  radios(list, buttons, (index) => state.set({ pass: passes[index].name, frame: -1 }));
  state.on(["pass"], mark);
  mark();
  const length = (pass) => pass.end - pass.start;
  const main = passes.find((pass) => pass.name === headline);
  const longest = passes.every((pass) => length(pass) <= length(main));
  return [
    h("h3", {}, `${count(passes.length, "call")} in ${duration(whole)}`), list,
    h("p.hint", {}, `Shares are of the whole program. The way and the timeline follow the call that is chosen; the figures in this part are those of ${headline}${longest ? ", the longest" : ""}.`),
  ];
}
