/* Spans by name: what matches stays bright, the list says how often and how long, Enter goes from one to the next. */

import { announce, h, put } from "./dom.js";
import { count, duration } from "./format.js";

const MOST_NAMES = 60;

export function showSearch(trace, state, timeline) {
  let found = [], at = -1;
  const input = h("input", { type: "search", id: "search", placeholder: "Search spans   /", "aria-label": "Search spans by name", autocomplete: "off", spellcheck: "false" });
  const results = h("div.results", { hidden: true });
  const zoom = (label, title, run) => h("button", { type: "button", title, "aria-label": title, click: run }, label);
  put(
    "time-tools", input,
    h("div.zoom", {}, zoom("−", "Zoom out (-)", () => timeline.zoom(1 / 0.6)), zoom("+", "Zoom in (+)", () => timeline.zoom(0.6)), zoom(trace.whole === "recording" ? "Recording" : "Request", `Fit the ${trace.whole} (0)`, () => timeline.show(timeline.pass.start, timeline.pass.end)), zoom("All", "Fit everything", () => timeline.show(trace.first, trace.last))),
  );
  timeline.stage.append(results);
  const next = (by) => {
    if (!found.length) return;
    at = (at + by + found.length) % found.length;
    timeline.showRow(found[at]);
    timeline.bringIntoView();
  };
  const search = (text) => {
    const wanted = text.trim().toLowerCase();
    const matches = wanted ? Uint8Array.from(trace.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0)) : null;
    timeline.matches = matches;
    found = [];
    at = -1;
    if (matches) for (let row = 1; row < trace.count; row++) if (matches[trace.name[row]] && timeline.lineOf(row)) found.push(row);
    found.sort((a, b) => trace.start[a] - trace.start[b]);
    results.hidden = !matches;
    results.replaceChildren(...(matches ? list(trace, found, pickName) : []));
    if (matches) announce(`${found.length} spans match`);
    timeline.queue();
  };
  const pickName = (name) => {
    const longest = found.filter((row) => trace.name[row] === name).reduce((best, row) => (best < 0 || trace.lengthOf(row) > trace.lengthOf(best) ? row : best), -1);
    at = found.indexOf(longest);
    timeline.showRow(longest);
    timeline.bringIntoView();
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
      document.getElementById("time").scrollIntoView();
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
    h("p", {}, rows.length ? `${count(rows.length, "span")} of ${count(sorted.length, "name")}${sorted.length > shown.length ? `, the ${shown.length} longest:` : ""}. Enter goes to the next.` : "No span has that in its name."),
    h("ol", {}, shown.map((one) => h("li", {}, h("button", { type: "button", "data-layer": one.layer, title: trace.names[one.name], click: () => pick(one.name) }, h("i"), h("span", {}, trace.names[one.name]), h("small", {}, `${one.calls.toLocaleString("en")} × · ${duration(one.total)}`))))),
  ];
}
