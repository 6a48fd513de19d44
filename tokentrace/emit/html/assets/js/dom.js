/* Elements from plain values. Text only ever becomes text: nothing in this page writes markup. */

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("p.soft", { title }, child, …)`. Functions are listeners, `style` is an object, null is left out. */
export function h(kind, properties = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  return fill(document.createElement(name || "div"), classes, properties, children);
}

/** The same for SVG. */
export function svg(kind, properties = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  return fill(document.createElementNS(SVG, name), classes, properties, children);
}

function fill(element, classes, properties, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "style") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function put(id, ...children) {
  const place = document.getElementById(id);
  place.replaceChildren(...children.flat(2).filter(Boolean));
  return place;
}

/** One of several buttons is on; arrow keys move between them (WAI-ARIA radio group). */
export function radios(group, buttons, choose) {
  group.setAttribute("role", "radiogroup");
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
    const next = Math.min(Math.max(at + step, 0), buttons.length - 1);
    choose(next);
    buttons[next].focus();
  });
  for (const [index, button] of buttons.entries()) {
    button.setAttribute("role", "radio");
    button.addEventListener("click", () => choose(index));
  }
}

export function check(buttons, index) {
  for (const [at, button] of buttons.entries()) {
    button.setAttribute("aria-checked", String(at === index));
    button.tabIndex = at === Math.max(index, 0) ? 0 : -1;
  }
}

/** A sentence whose `names` in backticks are set as code. */
export function prose(text) {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

/** What a screen reader should say now. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

export function still() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
