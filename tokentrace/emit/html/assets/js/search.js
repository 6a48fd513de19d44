/* Spans by name: what matches stays bright, the list says how often and how long, Enter goes from one to the next. */

import { h, put } from "./dom.js";
import { count, duration } from "./format.js";

const MOST_NAMES = 60;

export function showSearch(trace, state, timeline) {
  let found = [], at = -1;
  const input = h("input", { type: "search", id: "search", placeholder: "Search spans   /", "aria-label": "Search spans by name", "aria-describedby": "found", autocomplete: "off", spellcheck: "false" });
  const said = document.getElementById("found"), results = document.getElementById("results");
  const zoom = (label, title, run) => h("button", { type: "button", title, "aria-label": title, click: run }, label);
  put(
    "time-tools", input,
    h("div.zoom", {}, zoom("−", "Zoom out (-)", () => timeline.zoom(1 / 0.6)), zoom("+", "Zoom in (+)", () => timeline.zoom(0.6)), zoom(trace.whole === "recording" ? "Recording" : "Request", `Fit the ${trace.whole} (0)`, () => timeline.show(timeline.pass.start, timeline.pass.end)), zoom("All", "Fit everything", () => timeline.show(trace.first, trace.last))),
  );
  const next = (by) => {
    if (!found.length) return;
    at = at < 0 && by < 0 ? found.length - 1 : (at + by + found.length) % found.length;
    go();
  };
  const go = () => {
    timeline.showRow(found[at]);
    say();
    timeline.bringIntoView();
  };
  const say = () => {
    const names = new Set(found.map((row) => trace.name[row])).size;
    const which = at < 0 ? count(found.length, "span") : `${(at + 1).toLocaleString("en")} of ${count(found.length, "span")}`;
    said.textContent = !timeline.matches ? "" : found.length ? `${which} of ${count(names, "name")}. Enter goes to the next.` : "No span has that in its name.";
  };
  const search = (text) => {
    const wanted = text.trim().toLowerCase();
    const matches = wanted ? Uint8Array.from(trace.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0)) : null;
    timeline.matches = matches;
    found = [];
    at = -1;
    if (matches) for (let row = 1; row < trace.count; row++) if (matches[trace.name[row]] && timeline.lineOf(row)) found.push(row);
    found.sort((a, b) => trace.start[a] - trace.start[b]);
    results.hidden = !found.length;
    results.replaceChildren(...(found.length ? list(trace, found, pickName) : []));
    say();
    timeline.queue();
  };
  const pickName = (name) => {
    const longest = found.filter((row) => trace.name[row] === name).reduce((best, row) => (best < 0 || trace.lengthOf(row) > trace.lengthOf(best) ? row : best), -1);
    at = found.indexOf(longest);
    go();
  };
  input.addEventListener("input", () => search(input.value));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      input.value = "";
      search("");
      timeline.canvas.focus();
    }
  });
  return {
    focus() {
      // At once: a glide would end where the first letter typed calls the page.
      document.getElementById("time").scrollIntoView({ behavior: "instant" });
      input.focus({ preventScroll: true });
      input.select();
    },
    find(text) {
      input.value = text;
      search(text);
      document.getElementById("time").scrollIntoView();
    },
  };
}

function list(trace, rows, pick) {
  const names = new Map();
  for (const row of rows) {
    const one = names.get(trace.name[row]) ?? { name: trace.name[row], layer: trace.layer[row], calls: 0, total: 0 };
    one.calls++;
    one.total += trace.lengthOf(row);
    names.set(trace.name[row], one);
  }
  const sorted = [...names.values()].sort((a, b) => b.total - a.total);
  const shown = sorted.slice(0, MOST_NAMES);
  return [
    sorted.length > shown.length ? h("p.hint", {}, `The ${shown.length} names with the most time:`) : "",
    h("ol", {}, shown.map((one) => h("li", {}, h("button", { type: "button", "data-layer": one.layer, title: trace.names[one.name], click: () => pick(one.name) }, h("i"), h("span", {}, trace.names[one.name]), h("small", {}, `${one.calls.toLocaleString("en")} × · ${duration(one.total)}`))))),
  ];
}
