/* The run in short: what was asked and answered, how fast, and where the time went. */

import { callList, program, stageList } from "./calls.js";
import { h, prose, put } from "./dom.js";
import { count, duration, held, known, median, share } from "./format.js";

export function showHeadline(trace, state, go) {
  const { report, headline, passes } = trace.story;
  if (trace.chain) {
    const chosen = h("div.chosen", { role: "group", "aria-label": "The chosen call" });
    const fill = () => chosen.replaceChildren(...shown(oneCall(trace, passes.find((call) => call.name === state.pass), go)));
    put("headline", h("p.facts", {}, facts(trace, false)), cutShort(trace), program(trace), stageList(trace), callList(trace, state), chosen);
    state.on(["pass"], fill);
    fill();
    return;
  }
  const imported = Boolean(trace.story.recording) || (!report.prompt && !report.reply);
  const main = passes.find((one) => one.name === headline);
  put(
    "headline",
    h("p.facts", {}, facts(trace, imported)),
    cutShort(trace),
    imported ? null : talk(report.prompt, report.reply),
    report.error ? failure(report.error) : null,
    extract(trace),
    h("dl.figures", {}, figures(report, main, imported, trace.story.interrupted.includes(headline))),
    h("p.lead", {}, prose(report.slowest || "Nothing stands out."), " ", trace.story.slowest ? jump(trace.story.slowest, go) : null),
    bar(report.layers, report),
    legend(report.layers, report),
    stageList(trace),
  );
}

const shown = (parts) => parts.flat().filter(Boolean);

/** One call of a program: the report tells all about the longest one, and of the others what their passes say. */
function oneCall(trace, call, go) {
  const { report, headline, slowest } = trace.story;
  const told = report.passes[call.name], main = call.name === headline;
  const rows = main ? report.layers : layersOf(trace, told);
  const pace = told.pace?.exact ? told.pace.window_ns / told.pace.tokens : null;
  const perToken = main ? median(report.token_times.map((token) => token.itl_ns)) : pace;
  // A reply that came in one piece has no first token and no gaps.
  const figure = (name, ns) => (known(ns) ? h("div", {}, h("dt", {}, name), h("dd", {}, ...unit(duration(ns)))) : null);
  return [
    h("h3", {}, `The call ${call.name}`, call.model ? h("span.hint", {}, `  ·  ${call.model}`) : null),
    talk(main ? report.prompt : "", call.reply),
    call.let_go ? h("p.soft", {}, `Not whole: ${call.let_go}.`) : null,
    call.failed ? failure(main && report.error ? report.error : { message: call.failed }) : null,
    h("dl.figures.small", {}, [
      figure("First token", told.ttft_ns),
      figure(main ? "Per token, median" : "Per token after the first", perToken),
      figure("Whole call", told.wall_ns),
      h("div", {}, h("dt", {}, "Tokens"), h("dd", {}, `${call.tokens.input ?? "?"} → ${call.tokens.output ?? "?"}`)),
    ]),
    main ? h("p.lead", {}, prose(report.slowest || "Nothing stands out."), " ", slowest ? jump(slowest, go) : null) : null,
    bar(rows, told),
    legend(rows, told),
  ];
}

function layersOf(trace, told) {
  const spent = (layer, way) => told.own_ns[`${layer}.${way}`] ?? 0;
  return trace.story.layers.map(({ number, title }) => ({
    layer: number, title, status: "", holds: trace.story.report.layers.find((row) => row.layer === number)?.holds, own_source: "measured", own_ns_down: spent(number, "down"), own_ns_up: spent(number, "up"),
  }));
}

function facts(trace, imported) {
  const { report, meta, root, passes, program: name } = trace.story;
  const created = meta.created_ns ? new Date(Number(meta.created_ns) / 1e6) : null;
  const models = [...new Set(passes.map((call) => call.model).filter(Boolean))];
  const parts = [
    trace.chain ? `the program ${name}` : null,
    trace.chain ? models.slice(0, 4).join(", ") + (models.length > 4 ? ` and ${models.length - 4} more models` : "") : report.model,
    imported ? `imported: ${(root["tokentrace.import.files"] ?? ["a trace"]).join(", ")}` : null,
    meta.endpoint && meta.mode !== "local" ? meta.endpoint : null,
    passes.length > 1 && !trace.chain ? `asked ${passes.length === 2 ? "twice" : `${passes.length} times`} (${passes.map((pass) => pass.name).join(", ")}): the figures are those of the ${report.headline_pass} request` : null,
    created ? created.toLocaleString() : null,
  ];
  return parts.filter(Boolean).join("  ·  ");
}

function talk(prompt, reply) {
  if (!prompt && !reply) return null;
  const entry = (word, text, kind) => [h("dt", {}, word), h(`dd.${kind}${text.length > 240 ? ".long" : ""}`, { tabindex: text.length > 240 ? 0 : null }, text)];
  return h("dl.talk", {}, prompt ? entry("Prompt", prompt, "prompt") : null, reply ? entry("Reply", reply, "reply") : null);
}

function failure(error) {
  const where = error.layer ? ` (layer ${error.layer})` : "";
  return h("div.failure", { role: "alert" }, h("b", {}, `The request failed${where}. `), error.message, error.fix ? h("p.soft", {}, `Fix: ${error.fix}`) : null);
}

/** Whoever stopped the run sees less than a whole one, and the page says so first. */
function cutShort(trace) {
  const { interrupted, passes, report } = trace.story;
  if (!interrupted.length && !report.interrupted) return null;
  const where = passes.length > 1 && interrupted.length ? `interrupted in the ${interrupted.join(" and the ")} ${trace.part}` : "interrupted";
  const rest = interrupted.length
    ? "The page shows what had come until then: the reply and the times are not those of a whole run."
    : "What is shown is whole; the rest was never run.";
  return h("div.failure.cut", { role: "alert" }, h("b", {}, `This run was ${report.interrupted || where}. `), rest);
}

/** How much of a recording is here. */
function extract(trace) {
  const { recording } = trace.story;
  if (!recording?.folded) return null;
  const all = recording.shown + recording.folded;
  return h("p.extract", {}, `This page shows ${recording.shown.toLocaleString("en")} of ${all.toLocaleString("en")} recorded events as spans; ${recording.folded.toLocaleString("en")} are folded into the spans around them.${trace.story.report.spans.recorded >= all ? "" : " Times by layer are those of the spans shown."}`);
}

function figures(report, main, imported, cut) {
  const { input, output } = report.tokens;
  const gaps = report.token_times.map((token) => token.itl_ns);
  const figure = (name, ns, title) => h("div", { title }, h("dt", {}, name), h("dd", {}, ...unit(duration(ns))));
  return [
    imported ? null : figure("First token", report.ttft_ns, "from the request's start to the first text"),
    imported ? null : figure("Per token, median", median(gaps), "between two arrivals of text"),
    figure(imported ? "Recorded" : cut ? "Until interrupted" : "Whole request", report.wall_ns),
    known(input) || known(output) ? h("div", {}, h("dt", {}, "Tokens"), h("dd", {}, `${input ?? "?"} → ${output ?? "?"}`)) : null,
    main && known(report.coverage) ? h("div", { title: "the part of the request's time that lies in spans of a layer" }, h("dt", {}, "Seen in a layer"), h("dd", {}, share(report.coverage, 1))) : null,
  ];
}

function unit(text) {
  const [number, name] = text.split(" ");
  return name ? [number, h("small", {}, ` ${name}`)] : [number];
}

/** A button that shows the span behind a sentence. */
export function jump(target, go) {
  return h("button.link", { type: "button", title: target.label, click: () => go.toRow(target.row) }, "Show it");
}

/** "engine queue (with layers 5 to 3, not told apart)" */
const named = (row) => (held(row) ? `${row.title} (${held(row)})` : row.title);

/** `told`: wall_ns and unattributed_ns of what the rows are parts of. */
function bar(layers, told) {
  const spentIn = (row) => (row.own_ns_down ?? 0) + (row.own_ns_up ?? 0);
  const button = (row) => {
    const spent = spentIn(row);
    const text = `${row.layer} ${named(row)}: ${duration(spent)}, ${share(spent, told.wall_ns)}`;
    return h("button", {
      type: "button", "data-layer": row.layer, title: text, "aria-label": text, style: { flex: `${spent} 0 0` },
      click: () => document.getElementById(`lane-${row.layer}`).scrollIntoView({ block: "center" }),
    }, spent / told.wall_ns > 0.06 ? named(row) : "");
  };
  const free = told.unattributed_ns;
  const nobody = h("button.nobody", {
    type: "button", style: { flex: `${free} 0 0` }, title: `of no layer: ${duration(free)}`,
    "aria-label": `of no layer: ${duration(free)}`, click: () => document.getElementById("gaps").scrollIntoView({ block: "center" }),
  });
  return h("div.whole", { role: "group", "aria-label": "Own time of each layer, as parts of the whole" }, layers.filter((row) => spentIn(row) > 0).map(button), free ? nobody : null);
}

function legend(layers, told) {
  const rows = layers
    .map((row) => ({ ...row, spent: (row.own_ns_down ?? 0) + (row.own_ns_up ?? 0) }))
    .filter((row) => row.spent > 0)
    .sort((a, b) => b.spent - a.spent);
  const hidden = layers.filter((row) => row.status === "unseen").length;
  return h(
    "ul.legend", {},
    rows.map((row) => h("li", { "data-layer": row.layer }, h("i"), `${named(row)} `, h("b", {}, (row.own_source === "deep proportions" ? "~" : "") + share(row.spent, told.wall_ns)))),
    told.unattributed_ns ? h("li", {}, h("i.nobody"), `no layer ${share(told.unattributed_ns, told.wall_ns)}`) : null,
    hidden ? h("li", {}, h("a", { href: "#unseen" }, `${count(hidden, "layer")} not seen`)) : null,
    rows.some((row) => row.own_source === "deep proportions") ? h("li.estimate", {}, "~ shared out as the deep pass saw it") : null,
  );
}
