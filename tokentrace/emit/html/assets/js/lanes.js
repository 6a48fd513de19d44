/* The eight layers as lanes: the token goes down on the left and comes up on the right, in the form it has there. */

import { h, put } from "./dom.js";
import { count, duration, fact, held, known, share, visible } from "./format.js";
import { drawRails } from "./rails.js";
import { numbered, textOf, title } from "./steps.js";

const WAYS = ["down", "up"];

export function showLanes(trace, state, go) {
  const open = new Set();
  const place = document.getElementById("lanes");
  const rails = drawRails(place);
  place.classList.add("card");
  const draw = () => {
    const now = moment(trace, state);
    const toggle = (layer) => {
      open.has(layer) ? open.delete(layer) : open.add(layer);
      draw();
      document.querySelector(`#lane-${layer} .name`).focus();
    };
    put("lanes", ends(trace, state, now), now.layers.map((lane) => row(trace, lane, now, open.has(lane.layer), toggle, go)), ofNobody(now), note(now));
    rails.attach();
  };
  state.on(["pass", "frame"], (changed) => {
    draw();
    if (changed.includes("frame")) rails.travel();
  });
  draw();
}

/** Own times and forms of what is chosen: the whole request, or one step of it. */
function moment(trace, state) {
  const { report, passes, headline } = trace.story;
  const pass = passes.find((one) => one.name === state.pass);
  const frame = pass.frames[state.frame] ?? null;
  const told = report.passes[pass.name];
  const isMain = pass.name === headline;
  const reference = state.frame >= 0 ? (frame?.own ? sum(frame.own) + frame.unattributed : frame.end - frame.start) : isMain ? report.wall_ns : told?.wall_ns ?? pass.end - pass.start;
  const layers = report.layers.map((row) => ({
    ...row,
    meta: trace.story.layers.find((one) => one.number === row.layer),
    ways: Object.fromEntries(WAYS.map((way) => [way, at(row, way, { pass, frame, told, isMain, chain: trace.chain })])),
  }));
  const nobody = frame ? frame.unattributed : isMain ? report.unattributed_ns : told?.unattributed_ns ?? null;
  return { pass, frame, reference, layers, nobody, estimated: layers.some((lane) => WAYS.some((way) => lane.ways[way].estimated)) };
}

function sum(own) {
  return Object.values(own).reduce((total, spent) => total + spent, 0);
}

function at(row, way, { pass, frame, told, isMain, chain }) {
  const key = `${row.layer}.${way}`;
  if (frame) {
    const lost = frame.together && [4, 3].includes(row.layer) && row.status === "seen";
    const spent = frame.own && !lost ? frame.own[key] ?? 0 : null;
    return { form: frame.forms[key] ?? null, spent, estimated: frame.estimated && row.layer <= 5 && row.layer >= 3, atMost: frame.together && row.layer === 5 };
  }
  const form = way === "down" ? [row.form_in, row.form_out] : [row.form_up_in, row.form_up_out];
  if (isMain) {
    const spent = way === "down" ? row.own_ns_down : row.own_ns_up;
    return { form, spent, estimated: ["deep proportions", "parted as the spans shown"].includes(row.own_source) };
  }
  const own = told?.own_ns ?? {};
  // Of a pass that was folded nobody knows what is of no layer, nor the rest.
  const whole = !told || known(told.unattributed_ns);
  const deeper = whole && ([8, 7, 6, 5].includes(row.layer) || Object.keys(own).some((one) => one.startsWith(`${row.layer}.`)));
  // Passes of one request take the same forms; another call of a program has its own, which are told step by step.
  return { form: chain ? null : form, spent: own[key] ?? (deeper && row.status === "seen" ? 0 : null), estimated: false };
}

function ends(trace, state, now) {
  const { report } = trace.story;
  const word = ([shown, small]) => h("div.word", {}, h("p", {}, shown.length > 160 ? `${shown.slice(0, 160)}…` : shown), h("small", {}, small));
  const recorded = now.frame?.recorded;
  if (recorded) return h("div.row.ends", {}, word([numbered(now.frame), recorded.name ?? "starts here"]), word(counted(recorded)));
  const frames = now.pass.frames;
  const other = trace.chain && now.pass.name !== trace.story.headline;
  const start = other ? [now.pass.name, "this call starts here"] : [report.prompt || "what was recorded", report.prompt ? "the prompt goes in" : "starts here"];
  const before = state.frame > 0 ? [...frames.slice(0, state.frame)].reverse().find((frame) => frame.tokens.length) : null;
  const given = before ? [visible(textOf(before)) || "end", "the token before goes in"] : start;
  const text = now.frame ? visible(textOf(now.frame)) : other ? now.pass.reply : report.reply;
  const gone = now.frame ? [text || (now.frame.tokens.length ? "(no text)" : "no token yet"), title(now.frame, state.frame)] : [text || (report.error ? "no reply" : "ends here"), text ? "the reply comes back" : ""];
  return h("div.row.ends", {}, word(given), word(gone));
}

/** A step of a recording ends with what the chip did for it. */
function counted({ kernels, busy_ns: busy }) {
  if (!known(kernels)) return ["ends here", ""];
  return [count(kernels, "kernel"), known(busy) && kernels ? `the chip was at work on them for ${duration(busy)}` : "ends here"];
}

/** A recording may hold more than the page shows. */
function evidence(lane, trace) {
  if (!known(lane.evidence)) return "spans were folded";
  const shown = trace.story.recording?.layers[lane.layer];
  return shown < lane.evidence ? `${lane.evidence.toLocaleString("en")} events, ${shown.toLocaleString("en")} shown` : count(lane.evidence, "span");
}

function row(trace, lane, now, open, toggle, go) {
  const off = lane.status !== "seen";
  const small = off ? lane.status : evidence(lane, trace);
  return h(
    `article.lane.row${off ? ".off" : ""}`, { id: `lane-${lane.layer}`, "data-layer": lane.layer, "aria-label": `layer ${lane.layer}, ${lane.title}` },
    h("button.name", { type: "button", "aria-expanded": String(open), click: () => toggle(lane.layer) }, h("b", {}, String(lane.layer)), h("span", {}, lane.title, h("small", {}, small), held(lane) ? h("small.held", {}, held(lane)) : null)),
    WAYS.map((way) => [dot(lane, way, now), cell(lane, way, now)]),
    open ? more(trace, lane, go) : null,
  );
}

/** As large as its share: the area tells, so the size goes with the root. */
function dot(lane, way, now) {
  const spent = lane.ways[way].spent ?? 0;
  const here = lane.status === "seen" && (spent > 0 || (lane.ways[way].form && (now.frame || spent !== 0 || hidden(lane, way, now))));
  const size = 8 + 16 * Math.sqrt(spent / Math.max(now.reference, 1));
  return h(`div.dot.${way}${here ? "" : ".off"}`, { "data-way": way, "aria-hidden": "true" }, h("i", { style: here ? { "--size": `${size.toFixed(1)}px` } : {} }));
}

function cell(lane, way, now) {
  const { form, spent, estimated, atMost } = lane.ways[way];
  if (lane.status !== "seen" && !spent) {
    if (way === "up") return h("div.cell");
    return h("div.cell.quiet", { title: lane.reason }, h("p", {}, lane.status === "idle" ? `idle: ${lane.reason}` : lane.reason));
  }
  if (!now.frame && spent === 0 && !hidden(lane, way, now)) return h("div.cell.quiet", { title: form ? `${form[0]} → ${form[1]}` : "" }, h("p", {}, "nothing was seen on this way"));
  if (now.frame && !form && !spent) return h("div.cell.quiet", {}, h("p", {}, "nothing in this step"));
  const full = form ? `${form[0]} → ${form[1]}` : "";
  return h(
    `div.cell.${way}`, {},
    form ? h("div.form.mono", { title: full }, h("code", {}, form[0]), h("span", { "aria-label": "becomes" }, "→"), h("code", {}, form[1])) : null,
    spent === null ? h("div.spent", {}, h("b.unknown", {}, `time not known${whyUnknown(lane, now)}`)) : h(
      "div.spent", {},
      h("b", {}, (estimated ? "~" : (held(lane) || atMost) && spent ? "≤ " : "") + duration(spent)),
      h("div.meter", { "aria-hidden": "true" }, spent ? h("i", { style: { width: `${(100 * spent) / Math.max(now.reference, 1)}%` } }) : null),
      h("small", {}, hidden(lane, way, now) ? "behind a lower layer" : share(spent, now.reference)),
    ),
  );
}

/** It ran, but only in time that a layer nearer the chip owns. */
function hidden(lane, way, now) {
  const { form, spent } = lane.ways[way];
  return spent === 0 && (now.frame ? form : lane.hidden.includes(way));
}

function whyUnknown(lane, now) {
  if (now.frame?.together) return ": within layer 5, since spans were folded";
  if (now.pass.folded && (now.frame || !known(now.nobody))) return ": spans were folded";
  if ([3, 4].includes(lane.layer) && ["cold", "warm"].includes(now.pass.name)) return ": within layer 5, this pass did not look inside";
  return lane.own_source && lane.own_source !== "measured" ? `: ${lane.own_source}` : "";
}

function more(trace, lane, go) {
  const facts = Object.entries(lane.facts);
  return h(
    "div.more", {},
    h("p", {}, lane.meta.question),
    lane.reason ? h("p", {}, lane.reason) : null,
    lane.fix ? h("p", {}, h("b", {}, "To see it: "), lane.fix) : null,
    facts.length ? h("dl", {}, facts.map(([key, value]) => {
      const [name, text] = fact(key, value);
      return h("div", {}, h("dt", {}, name), h("dd", { title: text }, text));
    })) : null,
    lane.evidence ? h("p", {}, h("button.link", { type: "button", click: () => go.toLayer(lane.layer, lane.evidence_pass) }, trace.story.passes.length > 1 ? `Show its longest span in the ${lane.evidence_pass} ${trace.part}` : "Show its longest span")) : null,
  );
}

/** The rest of the time, so that the bars add up to the whole. */
function ofNobody(now) {
  if (!now.nobody) return null;
  return h(
    "div.row.rest", {},
    h("p.soft", {}, h("i.nobody"), "of no layer"),
    h("div.cell", {}, h(
      "div.spent", {},
      h("b", {}, duration(now.nobody)),
      h("div.meter", { "aria-hidden": "true" }, h("i.nobody", { style: { width: `${(100 * now.nobody) / Math.max(now.reference, 1)}%` } })),
      h("small", {}, share(now.nobody, now.reference)),
    )),
  );
}

function note(now) {
  const holder = now.layers.find(held);
  if (holder) return h("p.note", {}, `≤ time of the ${holder.title} ${held(holder)}.`);
  if (now.frame?.together) return h("p.note", {}, "≤ time of layers 5 to 3 together: what would part it was folded.");
  if (!now.estimated) return null;
  if (now.layers.some((lane) => lane.own_source === "parted as the spans shown")) return h("p.note", {}, "~ both ways together are the recording's own time; they are parted as in the spans shown.");
  return h("p.note", {}, `~ time of the ${now.pass.name} pass, shared out over layers 5 to 3 in the proportions of the deep pass, which looked inside.`);
}
