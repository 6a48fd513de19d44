/* Light or dark: the reader's choice, else the system's. Canvases read their colours from here. */

const listeners = [];
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = "";
const paper = matchMedia("print");
let printing = false;

function stored() {
  try {
    return localStorage.getItem("tokentrace-theme") ?? "";
  } catch {
    return ""; // a page from disk may have no storage
  }
}

function apply() {
  const dark = !onPaper() && (chosen ? chosen === "dark" : system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.textContent = dark ? "☀" : "☾";
  for (const listener of listeners) listener();
}

export function startTheme() {
  chosen = stored();
  system.addEventListener("change", apply);
  // Paper is light, and a canvas prints what is drawn on it by the end of this event: no frame and no observer runs then.
  addEventListener("beforeprint", () => { printing = true; apply(); });
  addEventListener("afterprint", () => { printing = false; apply(); });
  paper.addEventListener("change", apply);
  document.getElementById("theme").addEventListener("click", toggleTheme);
  apply();
}

export function toggleTheme() {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("tokentrace-theme", chosen);
  } catch {
    // it then lasts as long as the page is open
  }
  apply();
}

/** Is the page being printed, or shown as it prints? */
export function onPaper() {
  return printing || paper.matches;
}

export function onTheme(listener) {
  listeners.push(listener);
}

/** Colours of the palette by name. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}
