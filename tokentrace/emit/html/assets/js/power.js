/* Watts over time where a sensor gave them; else the sentence that says why there are none. */

import { h, svg } from "./dom.js";
import { duration, fact } from "./format.js";

const WIDTH = 620, HEIGHT = 190, LEFT = 46, BOTTOM = 24, TOP = 12;
/** So few samples are drawn one by one: what lies between them is a line, not a measurement. */
const FEW = 60;

export function showPower(trace) {
  const place = document.getElementById("power");
  const row = trace.story.report.layers.find((one) => one.layer === 1);
  const { power } = trace.story;
  if (power.length) place.append(...devices(power).map((series) => plot(trace, series)));
  else place.append(h("p", {}, row.reason ? `No watts: ${row.reason}.` : "No watts were recorded."), row.fix ? h("p.soft", {}, `To see them: ${row.fix}`) : "");
  const facts = Object.entries(row.facts);
  if (facts.length) {
    place.append(h("div.more", { style: { padding: "12px 0 0" } }, h("dl", {}, facts.map(([key, value]) => {
      const [name, text] = fact(key, value);
      return h("div", {}, h("dt", { title: key }, name), h("dd", { title: text }, text));
    }))));
  }
}

function devices(power) {
  const found = new Map();
  for (const series of power) found.set(series.device, [...(found.get(series.device) ?? []), series]);
  return [...found.values()];
}

function plot(trace, series) {
  const points = series.flatMap((one) => one.points);
  const from = Math.min(...points.map(([at]) => at)), until = Math.max(...points.map(([at]) => at), from + 1);
  const most = Math.max(...points.map(([, watts]) => watts), 1) * 1.1;
  const x = (at) => LEFT + ((at - from) / (until - from)) * (WIDTH - LEFT - 8);
  const y = (watts) => HEIGHT - BOTTOM - (watts / most) * (HEIGHT - BOTTOM - TOP);
  const line = (one) => one.points.map(([at, watts], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(watts).toFixed(1)}`).join("");
  const levels = [0, 0.5, 1].map((part) => (most / 1.1) * part);
  const lowest = Math.min(...points.map(([, watts]) => watts)), highest = Math.max(...points.map(([, watts]) => watts));
  const title = `${series[0].device || "device"}: ${lowest.toFixed(1)} to ${highest.toFixed(1)} W in ${points.length} samples`;
  return h(
    "figure", { style: { margin: "0 0 12px" } },
    svg(
      "svg.plot", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title },
      trace.story.passes.filter((pass) => pass.end > from && pass.start < until).map((pass) => [
        svg("rect.pass", { x: x(Math.max(pass.start, from)), y: TOP, width: Math.max(x(Math.min(pass.end, until)) - x(Math.max(pass.start, from)), 1), height: HEIGHT - BOTTOM - TOP }),
        svg("text", { x: x(Math.max(pass.start, from)) + 4, y: TOP + 12 }, pass.name),
      ]),
      levels.map((watts) => [svg("line.grid", { x1: LEFT, x2: WIDTH - 8, y1: y(watts), y2: y(watts) }), svg("text", { x: LEFT - 6, y: y(watts) + 4, "text-anchor": "end" }, `${watts.toFixed(watts && watts < 10 ? 1 : 0)} W`)]),
      series.map((one) => [svg("path.under", { d: `${line(one)}L${x(one.points[one.points.length - 1][0]).toFixed(1)} ${y(0)}L${x(one.points[0][0]).toFixed(1)} ${y(0)}Z` }), svg("path.line", { d: line(one) })]),
      points.length <= FEW ? points.map(([at, watts]) => svg("circle.sample", { cx: x(at).toFixed(1), cy: y(watts).toFixed(1), r: 3 })) : null,
      svg("text", { x: LEFT, y: HEIGHT - 6 }, "0"),
      svg("text", { x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, duration(until - from)),
    ),
    h("figcaption.hint", {}, title),
  );
}
