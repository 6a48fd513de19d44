/* Reads the run out of the page and puts its parts together. */

import { load } from "./data.js";
import { showDetails } from "./details.js";
import { check, h, put, radios } from "./dom.js";
import { count } from "./format.js";
import { showHeadline } from "./headline.js";
import { listenKeys } from "./keys.js";
import { showLanes } from "./lanes.js";
import { showPower } from "./power.js";
import { showSearch } from "./search.js";
import { createState } from "./state.js";
import { showSteps } from "./steps.js";
import { showAbout, showFindings, showLayers, showOperators, showUnseen } from "./tables.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";

function showPasses(trace, state) {
  const { passes } = trace.story;
  if (passes.length < 2) return;
  const buttons = passes.map((pass) => h("button", { type: "button" }, pass.name));
  const place = put("passes", buttons);
  place.setAttribute("aria-label", trace.chain ? "Call" : "Pass");
  const mark = () => {
    const at = passes.findIndex((pass) => pass.name === state.pass);
    check(buttons, at);
    // Many calls scroll within their row; the page stays where it is.
    const row = place.getBoundingClientRect(), one = buttons[at].getBoundingClientRect();
    if (one.left < row.left || one.right > row.right) place.scrollLeft += one.left - row.left - 24;
  };
  radios(place, buttons, (index) => state.set({ pass: passes[index].name, frame: -1 }));
  state.on(["pass"], mark);
  mark();
}

function longestOf(trace, layer, name) {
  let best = -1;
  for (let row = 1; row < trace.count; row++) {
    if (trace.layer[row] !== layer || trace.envelope[row] || trace.isMark(row)) continue;
    if (best >= 0 && trace.lengthOf(row) <= trace.lengthOf(best)) continue;
    if (trace.passOf(row)?.name === name) best = row;
  }
  return best;
}

function show(trace) {
  const state = createState({ pass: trace.story.headline, frame: -1, row: -1 });
  document.getElementById("main").hidden = false;
  document.getElementById("status").remove();
  const { report, program, recording } = trace.story;
  const about = trace.chain ? program : report.prompt ? `“${report.prompt.slice(0, 80)}”` : recording ? "a recording" : "a request";
  document.getElementById("run").textContent = `${about}  ·  ${count(trace.count, "span")}`;
  const timeline = new Timeline(trace, state);
  const toTime = () => document.getElementById("time").scrollIntoView();
  const go = {
    toRow(row) {
      timeline.showRow(row);
      toTime();
    },
    toLayer(layer, pass) {
      const row = longestOf(trace, layer, pass);
      if (row >= 0) this.toRow(row);
    },
    /** A stretch of the pass that speaks for the run. */
    toStretch(from, until) {
      state.set({ pass: trace.story.headline, frame: -1 });
      timeline.mark(from, until);
      toTime();
    },
  };
  showHeadline(trace, state, go);
  showPasses(trace, state);
  const steps = showSteps(trace, state);
  document.getElementById("way-keys").hidden = !steps.any;
  if (recording) document.getElementById("way-title").textContent = "Layer by layer";
  showLanes(trace, state, go);
  showDetails(trace, state, timeline);
  const search = showSearch(trace, state, timeline);
  showFindings(trace, go);
  showLayers(trace);
  showOperators(trace, search);
  showPower(trace);
  showUnseen(trace);
  showAbout(trace);
  listenKeys(state, steps, search);
  return { trace, state, timeline };
}

async function start() {
  startTheme();
  const holder = document.getElementById("data");
  try {
    const trace = await load(holder.textContent);
    holder.remove();
    // For whoever opens the console: the same objects that the page works with.
    window.tokentrace = show(trace);
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  } catch (error) {
    const status = document.getElementById("status") ?? document.body.appendChild(h("p", { id: "status" }));
    status.classList.add("failed");
    status.textContent = `This page cannot be shown: ${error.message}`;
    throw error;
  }
}

start();
