/* Findings, gaps, the passes side by side, operators, what was not seen, and the run's particulars. */

import { h, prose, put } from "./dom.js";
import { count, duration, held, known, share } from "./format.js";
import { jump } from "./headline.js";

/** So many passes or calls stand side by side without scrolling. */
const MOST_COLUMNS = 6;
const MARKS = { ok: "✓", warn: "!", fail: "×", unknown: "?" };

export function showFindings(trace, go) {
  const { report, findings } = trace.story;
  const item = (finding, index) => h(
    "li", { "data-layer": finding.layer },
    h(`span.mark.${MARKS[finding.status] ? finding.status : "unknown"}`, { title: finding.status, "aria-label": finding.status }, MARKS[finding.status] ?? "?"),
    h("p", {}, prose(finding.sentence), " ", findings[index] ? jump(findings[index], go) : null),
    h("p.where", {}, `Layer ${finding.layer}${finding.evidence ? `: ${finding.evidence}` : ""}`),
    finding.fix ? h("p.fix", {}, finding.fix) : null,
  );
  const notes = report.notes.map((note) => h("li", {}, h("span.mark.unknown", { "aria-hidden": "true" }, "i"), h("p", {}, note)));
  put("findings", report.findings.length || notes.length ? h("ul.items", {}, report.findings.map(item), notes) : h("p.soft", {}, "Nothing unusual was found."));
  showGaps(trace, go);
}

function showGaps(trace, go) {
  const { report, passes, headline } = trace.story;
  const pass = passes.find((one) => one.name === headline);
  const item = (gap) => h(
    "li.gap", {}, h("b", {}, duration(gap.length_ns)),
    h("p", {}, `between ${gap.before} and ${gap.after} `, h("span.where", {}, `in ${gap.around} `), h("button.link", { type: "button", click: () => go.toStretch(pass.start + gap.start_ns, pass.start + gap.start_ns + gap.length_ns) }, "Show it")),
  );
  put(
    "gaps", h("h3", {}, `Time of no layer${trace.chain ? ` in ${headline}` : ""}: ${known(report.unattributed_ns) ? `${duration(report.unattributed_ns)}, ${share(report.unattributed_ns, report.wall_ns)}` : "not known"}`),
    report.gaps.length ? h("ul.items", {}, report.gaps.map(item)) : h("p.soft", {}, report.unattributed_ns !== 0 ? "Where it lies is not known: spans were folded." : "Every instant belongs to a layer."),
  );
}

/** One column a pass, on one scale, so that lengths compare. */
export function showLayers(trace) {
  const { report, passes } = trace.story;
  const columns = passes.map((pass) => ({ pass, told: report.passes[pass.name] })).filter((column) => column.told);
  const spent = (told, layer) => ["down", "up"].map((way) => told.own_ns[`${layer}.${way}`] ?? 0);
  const most = Math.max(1, ...columns.map(({ told }) => told.wall_ns));
  // Many columns scroll, which paper cannot: there the headline's stands alone.
  const many = columns.length > MOST_COLUMNS;
  const beside = (pass) => (many && pass.name !== trace.story.headline ? ".beside" : "");
  document.getElementById("own-hint").textContent = `As measured${columns.length > 1 ? ` in each ${trace.part}` : ""}, on one scale: a full bar is the whole of ${columns.length > 1 ? "the longest request" : `the ${trace.whole}`}. Pale: on the way back.`;
  const cell = (row, { pass, told }) => {
    const [down, up] = spent(told, row.layer);
    if (!down && !up) return h(`td.dim${beside(pass)}`, {}, h("div.amount.dim", {}, h("span", {}, quiet(row, told))));
    const bar = (ns, kind) => (ns ? h(`i${kind}`, { style: { width: `${(100 * ns) / most}%` } }) : null);
    return h(`td${beside(pass)}`, { title: `${duration(down)} down, ${duration(up)} up` }, h("div.amount", {}, h("span", {}, duration(down + up)), h("div.meter", { "aria-hidden": "true" }, bar(down, ""), bar(up, ".back"))));
  };
  const line = (name, pick, kind = "minor") => h(`tr.${kind}`, {}, h("td", {}, name), columns.map(({ pass, told }) => h(`td${beside(pass)}`, {}, h("div.amount", {}, h("span", {}, pick(told))))));
  put(
    "layers",
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Own time by layer and pass" }, h(
      "table.compare", { style: many ? { "min-width": `${200 + 120 * columns.length}px` } : {} },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Layer"), columns.map(({ pass }) => h(`th${beside(pass)}`, { scope: "col" }, h("b", {}, pass.name === "once" ? "time" : pass.name), pass.name === trace.story.headline && columns.length > 1 ? (trace.chain ? " shown above" : " speaks for the run") : "")))),
      h(
        "tbody", {},
        report.layers.map((row) => h("tr", { "data-layer": row.layer }, h("td", {}, h("i.key"), `${row.layer} ${row.title}`, held(row) ? h("small", {}, held(row)) : null), columns.map((column) => cell(row, column)))),
        h("tr.minor.rest", {}, h("td", {}, h("i.key.nobody"), "of no layer"), columns.map(({ pass, told }) => h(`td${beside(pass)}`, {}, h("div.amount", {}, h("span", {}, duration(told.unattributed_ns)), h("div.meter", { "aria-hidden": "true" }, told.unattributed_ns ? h("i.nobody", { style: { width: `${(100 * told.unattributed_ns) / most}%` } }) : null))))),
        line(`the ${trace.whole}`, (told) => duration(told.wall_ns), "total"),
        columns.some(({ told }) => told.ttft_ns !== null) ? line("first token", (told) => duration(told.ttft_ns)) : null,
        columns.some(({ told }) => told.cached_tokens) ? line("tokens from the cache", (told) => String(told.cached_tokens ?? "–")) : null,
        columns.some(({ told }) => told.dilation) ? line("times the warm one", (told) => (told.dilation ? `${told.dilation.toFixed(2)} ×` : "–")) : null,
      ),
    )),
    many ? h("p.soft.only-paper", {}, `The ${columns.length - 1} other ${trace.part === "pass" ? "passes" : "calls"} are beside it on the screen.`) : null,
    report.cold ? h("p.soft", { style: { "margin-top": "12px" } }, report.cold) : null,
  );
}

function quiet(row, told) {
  if (row.layer === 1) return "no time";
  if (row.status !== "seen") return row.status;
  if (!known(told.unattributed_ns)) return "folded";
  const deeper = Object.keys(told.own_ns).some((key) => key.startsWith("4.") || key.startsWith("3."));
  return [3, 4].includes(row.layer) && !deeper ? "within 5" : "–";
}

export function showOperators(trace, search) {
  const { report } = trace.story;
  const place = document.getElementById("operators");
  if (!report.operators.length) {
    const folded = report.layers.some((row) => row.layer === 4 && row.status === "seen" && !known(row.evidence));
    const why = report.layers.find((row) => row.layer === 4)?.reason || "nothing looked inside the model";
    place.append(h("p.soft", {}, folded ? "Operators are not known: spans were folded." : `No operator was seen: ${why}.`));
    return;
  }
  const total = report.operators.reduce((sum, one) => sum + one.own_ns, 0);
  const all = report.operators_own_ns ?? 0;
  const most = report.operators[0].own_ns || 1;
  const row = (one) => h(
    "tr", { "data-layer": 4 },
    h("td", {}, h("button.link", { type: "button", click: () => search.find(one.name) }, one.name), one.shapes ? h("small.mono", {}, one.shapes.slice(0, 90)) : null),
    h("td.number", {}, one.calls.toLocaleString("en")),
    h("td.number", {}, duration(one.own_ns)),
    h("td", {}, h("div.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${(100 * one.own_ns) / most}%` } }))),
  );
  const head = h("tr", {}, h("th", { scope: "col" }, "Operator"), h("th.number", { scope: "col" }, "Calls"), h("th.number", { scope: "col" }, "Own time"), h("th", {}, h("span.unseen-text", {}, "as a bar")));
  const table = (rows) => h("div.scroll", {}, h("table", {}, h("thead", {}, head.cloneNode(true)), h("tbody", {}, rows.map(row))));
  const first = report.operators.slice(0, 8), rest = report.operators.slice(8);
  place.append(
    h("p.hint", {}, `In the ${trace.story.passes.length === 1 ? trace.whole : `${report.operators_pass} ${trace.part}`}; the ones shown own ${duration(total)}${all > total ? ` of the ${duration(all)} of all` : ""}.`), table(first),
    rest.length ? h("details", {}, h("summary", {}, `${rest.length} more`), table(rest)) : "",
  );
}

export function showUnseen(trace) {
  const { report } = trace.story;
  const rows = report.layers.filter((row) => row.status === "unseen");
  const place = document.getElementById("unseen");
  if (!rows.length) {
    place.hidden = true;
    return;
  }
  const item = (row) => h("li", { "data-layer": row.layer }, h("span.mark.unknown", { "aria-hidden": "true" }, String(row.layer)), h("p", {}, h("b", {}, row.title), `: ${row.reason || "no reason is known"}`), row.fix ? h("p.fix", {}, row.fix) : null);
  place.append(h("ul.items", {}, rows.map(item)));
}

export function showAbout(trace) {
  const { report, meta, version, root } = trace.story;
  const engine = meta.engine ?? {};
  const produced = report.spans.produced ?? trace.count;
  const recording = trace.story.recording;
  const recorded = recording ? trace.count + recording.folded : Math.max(report.spans.recorded ?? 0, produced, trace.count);
  const facts = [
    ["Spans here", trace.count < recorded ? `${trace.count.toLocaleString("en")}, folded from ${recorded.toLocaleString("en")}` : trace.count.toLocaleString("en")],
    ["Sent and taken", report.spans.accepted === null ? null : `${report.spans.accepted} of ${produced}, ${report.spans.rejected ?? 0} refused`],
    ["Lost", meta.lost ? `${count(meta.lost, "span")}: ${meta.lost_reason ?? ""}` : null],
    ["Trace id", trace.header.trace_id],
    ["Endpoint", meta.endpoint],
    ["Engine", engine.engine ?? null],
    ["Clocks agree within", root["tokentrace.clock.bound_ns"] ? duration(root["tokentrace.clock.bound_ns"]) : null],
    ...Object.entries(engine.versions ?? {}).filter(([key]) => ["torch", "transformers", "vllm", "python"].includes(key)),
    ...report.files.map((file) => ["File", file]),
  ];
  put("about", h("dl", {}, facts.filter(([, value]) => value).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, String(value))))), h("p", {}, `Made by tokentrace ${version}. This file holds all of it and asks the network for nothing.`));
}
