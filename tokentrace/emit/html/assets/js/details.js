/* The span that is chosen: its time, its place in the tree, its links, and all that was recorded about it. */

import { h } from "./dom.js";
import { duration, plain, share } from "./format.js";

const MOST_CHILDREN = 8, MOST_EVENTS = 200;
const WAYS = ["", "on the way down", "on the way up"];

export function showDetails(trace, state, timeline) {
  const panel = h("aside.details", { "aria-label": "The chosen span", tabindex: -1 });
  state.on(["row"], () => {
    timeline.board.classList.toggle("open", state.row >= 0);
    if (state.row < 0) {
      panel.remove();
      return;
    }
    panel.replaceChildren(...content(trace, state, timeline));
    panel.style.height = matchMedia("(max-width: 1000px)").matches ? "" : `${timeline.stage.offsetHeight}px`;
    timeline.board.append(panel);
    panel.scrollTop = 0;
  });
}

function content(trace, state, timeline) {
  const { row } = state;
  const pass = trace.passOf(row);
  const [code, message] = trace.status(row);
  const layer = trace.layer[row];
  const title = layer ? `layer ${layer}, ${trace.story.layers.find((one) => one.number === layer)?.title ?? ""}` : "run";
  const to = (other) => h("button.link", { type: "button", click: () => timeline.showRow(other) }, trace.nameOf(other));
  return [
    h("button.close", { type: "button", title: "Close (Esc)", "aria-label": "Close", click: () => state.set({ row: -1 }) }, "×"),
    h("span.tag", { "data-layer": layer }, h("i"), [title, WAYS[trace.way[row]]].filter(Boolean).join(", ")),
    h("h3", {}, trace.nameOf(row)),
    code === 2 ? h("p.error", {}, `failed${message ? `: ${message}` : ""}`) : null,
    h("dl", {}, times(trace, row, pass, pass ?? timeline.pass).map(([key, value]) => pair(key, value))),
    family(trace, row, to),
    linked(trace, row, to),
    ...recorded(trace, row),
    ...happened(trace, row),
  ].filter(Boolean);
}

/** The request, by its pass or its call where there are several. */
function whole(trace, pass) {
  if (trace.story.passes.length < 2) return trace.whole;
  return trace.chain ? `call ${pass.name}` : `${pass.name} ${trace.whole}`;
}

/** `pass`: the one it lies in, if any; `zero`: the one that the ruler counts from. */
function times(trace, row, pass, zero) {
  const length = trace.lengthOf(row);
  const found = [["took", pass && pass.row !== row ? `${duration(length)}, ${share(length, pass.end - pass.start)} of the ${trace.whole}` : duration(length)]];
  const self = trace.selfTime(row);
  if (duration(self) !== duration(length)) found.push(["without children", duration(self)]);
  const since = trace.start[row] - zero.start;
  found.push(["began", `${duration(Math.abs(since))} ${since < 0 ? "before" : "after"} the ${whole(trace, zero)} began`]);
  if (pass && trace.story.passes.length > 1) found.push([trace.part, pass.name]);
  const process = trace.header.processes[trace.process[row]];
  if (process.key) found.push(["process, thread", `${process.key}, ${trace.header.threads[trace.thread[row]] || "–"}`]);
  const id = trace.header.ids[row];
  if (id) found.push(["span id", id]);
  return found;
}

function pair(key, value) {
  return h("div", {}, h("dt", {}, key), h("dd", {}, typeof value === "string" ? value : plain(value)));
}

function family(trace, row, to) {
  const parent = trace.parent[row];
  const children = trace.children(row).filter((child) => !trace.isMark(child));
  const longest = [...children].sort((a, b) => trace.lengthOf(b) - trace.lengthOf(a)).slice(0, MOST_CHILDREN);
  return h(
    "div", {},
    parent >= 0 ? h("p", {}, "In ", to(parent)) : null,
    longest.length ? h("p", {}, children.length > longest.length ? `Holds ${children.length.toLocaleString("en")}, the longest:` : "Holds") : null,
    h("ul", {}, longest.map((child) => h("li", {}, to(child), ` ${duration(trace.lengthOf(child))}`))),
  );
}

function linked(trace, row, to) {
  const parts = [["Launched by", trace.linksFrom(row)], ["Started", trace.linksTo(row)]];
  return h("div", {}, parts.filter(([, rows]) => rows.length).map(([word, rows]) => [h("p", {}, word), h("ul", {}, rows.slice(0, 30).map((other) => h("li", {}, to(other), ` ${duration(trace.start[other] - trace.start[row])} away`)))]));
}

function recorded(trace, row) {
  const attributes = trace.attributes(row);
  if (!attributes.length) return [];
  return [h("h4.soft", {}, "Recorded"), h("dl.mono", {}, attributes.map(([key, value]) => pair(key.replace(/^tokentrace\./, ""), value)))];
}

function happened(trace, row) {
  const events = trace.events(row);
  if (!events.length) return [];
  const line = ([at, name, attributes]) => pair(`${name} +${duration(at - trace.start[row])}`, Object.entries(attributes).map(([key, value]) => `${key.replace(/^tokentrace\./, "")}: ${plain(value)}`).join("\n"));
  return [h("h4.soft", {}, events.length > MOST_EVENTS ? `The first ${MOST_EVENTS} of ${events.length} events` : "Events"), h("dl.mono", {}, events.slice(0, MOST_EVENTS).map(line))];
}
