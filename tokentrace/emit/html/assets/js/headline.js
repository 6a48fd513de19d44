/* The run in short: what was asked and answered, how fast, and where the time went. */

import { callList } from "./calls.js";
import { h, prose, put } from "./dom.js";
import { count, duration, median, share } from "./format.js";

export function showHeadline(trace, state, go) {
  const { report, headline, passes } = trace.story;
  const imported = Boolean(trace.story.recording) || (!report.prompt && !report.reply);
  const main = passes.find((one) => one.name === headline);
  put(
    "headline",
    h("p.facts", {}, facts(trace, imported)),
    cutShort(trace),
    callList(trace, state),
    imported ? null : talk(report),
    report.error ? failure(report.error) : null,
    extract(trace),
    h("dl.figures", {}, figures(report, main, imported, trace.story.interrupted.includes(headline))),
    h("p.lead", {}, prose(report.slowest || "Nothing stands out."), " ", trace.story.slowest ? jump(trace.story.slowest, go) : null),
    bar(report),
    legend(report),
  );
}

function facts(trace, imported) {
  const { report, meta, root, passes } = trace.story;
  const created = meta.created_ns ? new Date(Number(meta.created_ns) / 1e6) : null;
  const parts = [
    report.model,
    imported ? `imported: ${(root["tokentrace.import.files"] ?? ["a trace"]).join(", ")}` : null,
    meta.endpoint && meta.mode !== "local" ? meta.endpoint : null,
    passes.length > 1 ? `times of the ${report.headline_pass} ${trace.part} of ${passes.length}` : null,
    created ? created.toLocaleString() : null,
  ];
  return parts.filter(Boolean).join("  ·  ");
}

function talk(report) {
  const entry = (word, text, kind) => [h("dt", {}, word), h(`dd.${kind}${text.length > 240 ? ".long" : ""}`, { tabindex: text.length > 240 ? 0 : null }, text)];
  return h(
    "dl.talk", {},
    report.prompt ? entry("Prompt", report.prompt, "prompt") : null,
    report.reply ? entry("Reply", report.reply, "reply") : null,
  );
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
  const known = (value) => value !== null && value !== undefined;
  return [
    imported ? null : figure("First token", report.ttft_ns, "from the request's start to the first text"),
    imported ? null : figure("Per token, median", median(gaps), "between two arrivals of text"),
    figure(imported ? "Recorded" : cut ? "Until interrupted" : "Whole request", report.wall_ns),
    known(input) || known(output) ? h("div", {}, h("dt", {}, "Tokens"), h("dd", {}, `${input ?? "?"} → ${output ?? "?"}`)) : null,
    main && known(report.coverage) ? h("div", { title: "of the time lies in spans of a layer" }, h("dt", {}, "Of it in a layer"), h("dd", {}, share(report.coverage, 1))) : null,
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

function bar(report) {
  const parts = report.layers.filter((row) => (row.own_ns_down ?? 0) + (row.own_ns_up ?? 0) > 0);
  const button = (row) => {
    const spent = (row.own_ns_down ?? 0) + (row.own_ns_up ?? 0);
    const text = `${row.layer} ${row.title}: ${duration(spent)}, ${share(spent, report.wall_ns)}`;
    return h("button", {
      type: "button", "data-layer": row.layer, title: text, "aria-label": text, style: { flex: `${spent} 0 0` },
      click: () => document.getElementById(`lane-${row.layer}`).scrollIntoView({ block: "center" }),
    }, spent / report.wall_ns > 0.06 ? row.title : "");
  };
  const nobody = h("button.nobody", {
    type: "button", style: { flex: `${report.unattributed_ns} 0 0` }, title: `of no layer: ${duration(report.unattributed_ns)}`,
    "aria-label": `of no layer: ${duration(report.unattributed_ns)}`, click: () => document.getElementById("gaps").scrollIntoView({ block: "center" }),
  });
  return h("div.whole", { role: "group", "aria-label": "Own time of each layer, as parts of the whole" }, parts.map(button), report.unattributed_ns ? nobody : null);
}

function legend(report) {
  const rows = report.layers
    .map((row) => ({ ...row, spent: (row.own_ns_down ?? 0) + (row.own_ns_up ?? 0) }))
    .filter((row) => row.spent > 0)
    .sort((a, b) => b.spent - a.spent);
  const hidden = report.layers.filter((row) => row.status === "unseen").length;
  return h(
    "ul.legend", {},
    rows.map((row) => h("li", { "data-layer": row.layer }, h("i"), `${row.title} `, h("b", {}, (row.own_source === "deep proportions" ? "~" : "") + share(row.spent, report.wall_ns)))),
    report.unattributed_ns ? h("li", {}, h("i.nobody"), `no layer ${share(report.unattributed_ns, report.wall_ns)}`) : null,
    hidden ? h("li", {}, h("a", { href: "#unseen" }, `${count(hidden, "layer")} not seen`)) : null,
  );
}
