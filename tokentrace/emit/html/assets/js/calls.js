/* A program that made several calls: its own figures, when each call ran, and a way to choose one. */

import { check, h, radios } from "./dom.js";
import { count, duration, known, share } from "./format.js";

/** So many are all shown at once; a longer list scrolls, and says so. */
const MOST_CALLS = 16;

const lengthOf = (call) => call.end - call.start;

/** The program's figures, large, and the call that took most of it. */
export function program(trace) {
  const { passes } = trace.story;
  const whole = Math.max(trace.lengthOf(0), 1);
  const failed = passes.filter((call) => call.failed).length;
  const inCalls = covered(passes);
  const figure = (name, title, ...value) => h("div", { title }, h("dt", {}, name), h("dd", {}, ...value));
  const [number, unit] = duration(whole).split(" ");
  const top = passes.reduce((most, call) => (lengthOf(call) > lengthOf(most) ? call : most));
  return [
    h("dl.figures", {}, [
      figure("Calls", "requests and generations of this program", passes.length.toLocaleString("en")),
      failed ? figure("Failed", "calls that ended with an error", String(failed)) : null,
      figure("Whole program", "from the first line of the traced block to its last", number, h("small", {}, ` ${unit}`)),
      figure("Of it in calls", "while at least one call was under way; the rest is the program itself", share(inCalls, whole)),
      figure("Tokens", "of all calls: prompts → replies", `${sum(passes, "input")} → ${sum(passes, "output")}`),
    ]),
    h("p.lead", {}, h("code", {}, top.name), ` took the most: ${duration(lengthOf(top))}, ${share(lengthOf(top), whole)} of the program.${overlap(passes, inCalls)} The program itself, outside of every call, took ${duration(whole - inCalls)}.`),
  ];
}

/** What each stage of the program took; nothing for a program without stages. */
export function stageList(trace) {
  const { stages, program: whole } = trace.story.report;
  if (!stages?.length || !whole) return null;
  const cell = (text) => h("td.number", {}, text);
  const row = (stage) => h(
    "tr", {},
    h("td", { style: { "padding-left": `${18 * Math.max(stage.way.length - 1, 0)}px` } }, stage.way.at(-1) ?? h("span.dim", {}, "outside of every stage"), stage.runs > 1 ? h("span.dim", {}, ` × ${stage.runs}`) : null),
    cell(duration(stage.wall_ns)), cell(share(stage.wall_ns, whole.wall_ns)), cell(duration(stage.in_calls_ns)),
    cell(`${stage.calls.length}${stage.failed ? `, ${stage.failed} failed` : ""}`),
    cell(stage.calls.length ? `${stage.tokens.input ?? "?"} → ${stage.tokens.output ?? "?"}` : "–"),
  );
  const heads = ["took", "of the program", "of it in calls", "calls", "tokens"].map((name) => h("th.number", { scope: "col" }, name));
  return [
    h("h3", {}, "Where the time went, by stage"),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Stages of the program" }, h("table.stages", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Stage"), heads)), h("tbody", {}, stages.map(row)))),
    h("p.hint.of-stages", {}, "A stage holds the calls and the stages inside it, and what the program did between them."),
  ];
}

/** How long at least one call was under way. */
function covered(calls) {
  let total = 0, until = -Infinity;
  for (const call of [...calls].sort((a, b) => a.start - b.start)) {
    total += Math.max(call.end - Math.max(call.start, until), 0);
    until = Math.max(until, call.end);
  }
  return total;
}

function overlap(calls, inCalls) {
  const added = calls.reduce((total, call) => total + lengthOf(call), 0);
  return added > inCalls * 1.001 ? ` Calls ran beside each other: one after the other they would take ${duration(added)}.` : "";
}

/** A sum with a + where a call does not tell its part, ? where none does. */
function sum(calls, way) {
  const told = calls.map((call) => call.tokens[way]).filter(known);
  if (!told.length) return "?";
  return `${told.reduce((total, value) => total + value, 0).toLocaleString("en")}${told.length < calls.length ? "+" : ""}`;
}

/** How it went, in a line: a reply that the program did not read to its end is not the whole of it. */
const told = (call) => (call.failed ? `failed: ${call.failed}` : [call.let_go, call.reply].filter(Boolean).join(": "));

/** The calls as rows: length, share of the program, when, and what came back. */
export function callList(trace, state) {
  const { passes } = trace.story;
  const start = trace.start[0], whole = Math.max(trace.lengthOf(0), 1);
  const buttons = passes.map((call) => {
    const length = lengthOf(call);
    const part = (ns) => `${Math.min(Math.max((100 * ns) / whole, 0), 100)}%`;
    return h(
      "button.call", { type: "button", title: told(call).slice(0, 300) },
      h("b", {}, call.name), h("span.number", {}, duration(length)), h("span.number", {}, share(length, whole)),
      h("span.span", { "aria-hidden": "true" }, h("i", { style: { "margin-left": part(call.start - start), width: part(length) } })),
      h("small", {}, told(call)),
    );
  });
  const long = buttons.length > MOST_CALLS;
  const list = h(`div.calls${long ? ".long" : ""}`, { "aria-label": "Calls" }, buttons);
  const mark = () => {
    const at = passes.findIndex((call) => call.name === state.pass);
    check(buttons, at);
    const frame = list.getBoundingClientRect(), one = buttons[at].getBoundingClientRect();
    if (one.top < frame.top) list.scrollTop += one.top - frame.top - 8;
    else if (one.bottom > frame.bottom) list.scrollTop += one.bottom - frame.bottom + 24;
  };
  radios(list, buttons, (index) => state.set({ pass: passes[index].name, frame: -1 }));
  state.on(["pass"], mark);
  mark();
  requestAnimationFrame(mark); // once it is on the page, it has a height
  return [
    h("h3", {}, "Where the time went, by call"), list,
    h("p.hint", {}, `${count(passes.length, "call")}${long ? ", more than stand here at once: the list scrolls" : ""}; shares are of the whole program. What follows is about the call that is chosen.`),
  ];
}
