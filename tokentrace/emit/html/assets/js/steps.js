/* The reply token by token: one column a step, as high as the step was long, in the colours of its layers. */

import { announce, check, h, put, radios } from "./dom.js";
import { duration, visible } from "./format.js";

/** Beyond this many a phone has no room for the word before a step's number. */
const FEW = 5;
const MANY = 60;
/** Beyond this many a column is one bar: the layers inside would be thinner than a pixel. */
const PLAIN = 400;
const HEIGHT = 84;
const PACE_MS = 1500;

export function showSteps(trace, state) {
  let timer = 0, buttons = [];
  const pass = () => trace.story.passes.find((one) => one.name === state.pass);
  const move = (by) => {
    if (!buttons.length) return;
    const last = pass().frames.length - 1;
    state.set({ frame: Math.min(Math.max(state.frame + by, -1), last) });
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    document.getElementById("play")?.setAttribute("aria-pressed", "false");
  };
  const play = () => {
    if (!buttons.length) return;
    if (timer) return stop();
    if (state.frame >= pass().frames.length - 1) state.set({ frame: -1 });
    move(1);
    timer = setInterval(() => (state.frame >= pass().frames.length - 1 ? stop() : move(1)), PACE_MS);
    document.getElementById("play").setAttribute("aria-pressed", "true");
  };
  const draw = () => {
    stop();
    const { frames } = pass();
    buttons = several(pass()) ? columns(frames) : [];
    if (!buttons.length) return put("steps");
    const strip = h(`div.strip${frames.length > MANY ? ".many" : ""}`, { "aria-label": trace.story.recording ? "Steps of the recording" : "Steps of the reply" }, buttons);
    radios(strip, buttons, (index) => state.set({ frame: index }));
    put("steps", controls(trace, state, move, play), strip);
    mark();
  };
  const mark = () => {
    check(buttons, state.frame);
    const whole = document.getElementById("whole-request");
    whole?.setAttribute("aria-checked", String(state.frame < 0));
    buttons[state.frame]?.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    const frame = pass().frames[state.frame];
    announce(frame ? `${title(frame, state.frame)}, ${duration(frame.end - frame.start)}` : `the whole ${trace.whole}`);
  };
  state.on(["pass"], () => { draw(); });
  state.on(["frame"], mark);
  draw();
  return { move, play, any: trace.story.passes.some(several) };
}

/** Is there more than one thing to go through? */
function several({ frames }) {
  return frames.length > 1 || frames.some((frame) => frame.tokens.length);
}

function controls(trace, state, move, play) {
  return h(
    "div.around", {},
    h("button", { type: "button", id: "whole-request", role: "radio", "aria-checked": "true", click: () => state.set({ frame: -1 }) }, `Whole ${trace.whole}`),
    h(
      "div.pair", {},
      h("button", { type: "button", title: "Step before (←)", "aria-label": "Step before", click: () => move(-1) }, "←"),
      h("button", { type: "button", id: "play", title: "Play (p)", "aria-label": "Play the steps", "aria-pressed": "false", click: play }, "▶"),
      h("button", { type: "button", title: "Next step (→)", "aria-label": "Next step", click: () => move(1) }, "→"),
    ),
  );
}

function columns(frames) {
  const longest = Math.max(...frames.map((frame) => frame.end - frame.start), 1);
  return frames.map((frame, index) => {
    const length = frame.end - frame.start;
    const text = textOf(frame);
    return h(
      "button.frame", { type: "button", title: `${title(frame, index)}: ${duration(length)}${frame.unattributed ? `, ${duration(frame.unattributed)} of it of no layer` : ""}` },
      h("span", {}, duration(length)),
      h("div.stack", { style: { height: `${Math.max((HEIGHT * length) / longest, 2)}px` } }, frames.length > PLAIN ? null : stack(frame)),
      h(`span.chip${text ? "" : ".none"}`, {}, text ? visible(text) : frame.tokens.length ? "end" : frame.recorded ? (frames.length > FEW && frame.phase === "step" ? `#${frame.step.index}` : numbered(frame)) : frame.phase),
    );
  });
}

/** The user's layers above the chip's, as everywhere on this page; below them the time that no layer owns. */
function stack(frame) {
  if (!frame.own) return null;
  const found = [];
  for (let layer = 8; layer > 1; layer--) {
    const spent = (frame.own[`${layer}.down`] ?? 0) + (frame.own[`${layer}.up`] ?? 0);
    if (spent) found.push(h("i", { "data-layer": layer, style: { "flex-grow": spent, "flex-basis": "0" } }));
  }
  if (frame.unattributed) found.push(h("i.nobody", { style: { "flex-grow": frame.unattributed, "flex-basis": "0" } }));
  return found;
}

export function textOf(frame) {
  return frame.tokens.map((token) => token.text).join("");
}

/** "decode 12": a step of a recording, by its phase and its number there. */
export function numbered(frame) {
  return `${frame.phase} ${frame.step.index}`;
}

/** "prefill, token 1 “Hello” (id 19556)" */
export function title(frame, index) {
  if (frame.recorded) return [numbered(frame), frame.recorded.name].filter(Boolean).join(", ");
  const tokens = frame.tokens.map((token) => {
    const id = token.id === null ? "" : ` (id ${token.id})`;
    return `token ${token.index + 1}${token.text ? ` “${token.text}”` : ""}${id}`;
  });
  const phase = frame.phase === "arrival" ? (index ? "arrival" : "first arrival") : frame.phase;
  return [phase === "step" && frame.step?.index !== null ? `step ${frame.step.index}` : phase, ...tokens].join(", ");
}
