/* Keys of the whole page, and the card that lists them. */

import { h } from "./dom.js";
import { toggleTheme } from "./theme.js";

const OF_STEPS = [
  ["← →", "one step back or on"],
  ["w", "the whole, not one step"],
  ["p", "play the steps, or stop"],
];
const LISTED = [
  ["/", "search; Enter and Shift Enter go through what was found"],
  ["Esc", "close the chosen span or the search"],
  ["t", "light or dark"],
  ["?", "this card"],
  ["on the timeline", "+ and − zoom, ← → ↑ ↓ move, 0 fits the whole"],
  ["Shift ← → ↑ ↓", "on the timeline: the span before, after, around, within"],
  ["Enter", "on the timeline: zoom to the chosen span"],
];

export function listenKeys(state, steps, search) {
  const card = document.getElementById("help");
  card.append(
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", {}, [...(steps.any ? OF_STEPS : []), ...LISTED].map(([key, text]) => [h("dt", {}, key.includes(" ") && key.startsWith("on") ? key : h("kbd", {}, key)), h("dd", {}, text)])),
    h("form", { method: "dialog" }, h("button", { type: "submit" }, "Close")),
  );
  // The page may send no form anywhere, so the dialog is closed by hand.
  card.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); card.close(); });
  document.getElementById("keys").addEventListener("click", () => card.showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || card.open) return;
    const writing = event.target instanceof HTMLInputElement;
    if (writing) return;
    const actions = {
      ArrowLeft: () => steps.move(-1),
      ArrowRight: () => steps.move(1),
      w: () => state.set({ frame: -1 }),
      p: () => steps.play(),
      "/": () => search.focus(),
      Escape: () => state.set({ row: -1 }),
      t: toggleTheme,
      "?": () => card.showModal(),
    };
    const action = actions[event.key];
    if (!action || (event.shiftKey && event.key.startsWith("Arrow"))) return;
    event.preventDefault();
    action();
  });
}
