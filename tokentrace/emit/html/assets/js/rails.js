/* The line that the token runs along: down through the left dots, round, and up through the right ones. */

import { still, svg } from "./dom.js";

const TRIP_MS = 1300;

export function drawRails(place) {
  const path = svg("path");
  const glow = svg("circle.glow", { r: 11, visibility: "hidden" });
  const pulse = svg("circle.pulse", { r: 5.5, visibility: "hidden" });
  const picture = svg("svg.rails", { "aria-hidden": "true" }, path, glow, pulse);
  let running = 0;

  const centre = (dot, box) => {
    const one = dot.getBoundingClientRect();
    return [one.left - box.left + one.width / 2, one.top - box.top + one.height / 2];
  };
  const points = (way) => {
    const box = place.getBoundingClientRect();
    return [...place.querySelectorAll(`.dot.${way}`)].map((dot) => centre(dot, box));
  };
  const lay = () => {
    const down = points("down"), up = points("up");
    if (!down.length) return;
    const [left, first] = down[0], [right] = up[0], bottom = down[down.length - 1][1];
    const turn = Math.min(24, Math.max(place.clientHeight - bottom - 8, 10));
    path.setAttribute("d", `M${left} ${first - 44}V${bottom}q0 ${turn} ${turn} ${turn}H${right - turn}q${turn} 0 ${turn} ${-turn}V${first - 44}`);
  };
  const put = (x, y) => {
    for (const circle of [glow, pulse]) {
      circle.setAttribute("visibility", "visible");
      circle.setAttribute("cx", x);
      circle.setAttribute("cy", y);
    }
  };
  const rest = () => {
    for (const circle of [glow, pulse]) circle.setAttribute("visibility", "hidden");
  };
  new ResizeObserver(lay).observe(place);

  return {
    attach() {
      place.prepend(picture);
      lay();
    },
    travel() {
      cancelAnimationFrame(running);
      rest();
      if (still() || !path.getAttribute("d") || getComputedStyle(picture).display === "none") return;
      const whole = path.getTotalLength(), start = performance.now();
      const dots = [...place.querySelectorAll(".dot.down:not(.off)"), ...[...place.querySelectorAll(".dot.up:not(.off)")].reverse()];
      const box = place.getBoundingClientRect();
      const waiting = dots.map((dot) => [dot, centre(dot, box)]);
      const step = (now) => {
        const part = Math.min((now - start) / TRIP_MS, 1);
        const { x, y } = path.getPointAtLength(whole * (part < 0.5 ? 2 * part * part : 1 - (2 - 2 * part) ** 2 / 2));
        put(x, y);
        while (waiting.length && Math.hypot(waiting[0][1][0] - x, waiting[0][1][1] - y) < 26) waiting.shift()[0].classList.add("lit");
        if (part < 1) running = requestAnimationFrame(step);
        else rest();
      };
      running = requestAnimationFrame(step);
    },
  };
}
