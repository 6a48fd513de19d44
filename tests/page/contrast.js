// Elements whose own text has less than 4.5 to 1 against the ground painted behind it, with their ratio.
() => {
  const parse = (text) => (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  // WCAG 2.2, relative luminance
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * (top[3] ?? 1) + below[i] * (1 - (top[3] ?? 1)));
  const ground = (element) => {
    const stack = [];
    for (let at = element; at; at = at.parentElement) stack.push(parse(getComputedStyle(at).backgroundColor));
    return stack.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = new Map();
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest(".unseen-text, svg")) continue;
    const below = ground(element);
    const a = light(over(parse(getComputedStyle(element).color), below)), b = light(below);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.set(`${element.tagName}.${element.className}`, ratio.toFixed(2));
  }
  return [...found];
}
