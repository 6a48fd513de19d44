/* The timeline: an overview above, the lines of spans below; zoom, pan, hover, choose. */

import { blankLanes } from "./blank.js";
import { announce, h, put, still } from "./dom.js";
import { duration } from "./format.js";
import { firstAfter, layOut } from "./layout.js";
import { fit, paintLine, ticks } from "./painter.js";
import { listen } from "./pointer.js";
import { colours, onPaper, onTheme } from "./theme.js";

const LINE = 18, GAP = 1, GROUP = 9, RULER = 24, MAP = 40, MOST = 620;
/** The width of a sheet is not known before it is laid out, so the drawing is as wide as A4 and letter leave, and is scaled. */
const SHEET = { width: 700, most: 800, ratio: 3 };

export class Timeline {
  constructor(trace, state) {
    Object.assign(this, { trace, state, groups: layOut(trace), matches: null, marked: null, hovered: -1 });
    this.map = h("canvas", { "aria-hidden": "true" });
    this.canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": "Timeline of all spans. Plus and minus zoom, arrows move, Shift and arrows go from span to span." });
    this.spacer = h("div");
    this.view = h("div.view", {}, this.canvas, this.spacer);
    this.tip = h("div.tip", { hidden: true });
    this.blank = blankLanes(this);
    this.cut = h("p.cut-lines", { hidden: true });
    this.stage = h("div.stage", {}, h("div.map", {}, this.map), this.view, this.cut, this.legend(), this.tip);
    this.board = h("div.board.card", {}, this.stage);
    put("timeline", this.board);
    this.view.addEventListener("scroll", () => this.queue());
    this.placeLines();
    const pass = this.pass;
    [this.from, this.until] = [pass.start, pass.end];
    listen(this);
    onTheme(() => this.repaint());
    new ResizeObserver(() => this.repaint()).observe(this.stage);
    // A span that is chosen brings its pass along, and whoever chose it says what to show.
    state.on(["pass"], (changed) => { if (!changed.includes("row")) this.showPass(); });
    state.on(["frame"], (changed) => { if (!changed.includes("row")) this.showFrame(); });
    state.on(["row"], () => this.queue());
  }

  get pass() {
    return this.trace.story.passes.find((one) => one.name === this.state.pass);
  }

  legend() {
    return h("p.legend-line", {}, "Drag to move, Ctrl and wheel to zoom, double click to fit a span, Shift and drag to choose a stretch. Grey framed spans hold others together or wait, and own no time.");
  }

  /** [{ line, layer, top }] and the height of all. */
  placeLines() {
    let top = RULER + 4;
    this.lines = [];
    this.titles = [];
    for (const group of this.groups) {
      this.titles.push({ layer: group.layer, group, top, height: group.lines.length * (LINE + GAP) });
      for (const line of group.lines) {
        this.lines.push({ line, layer: group.layer, top });
        top += LINE + GAP;
      }
      top += GROUP;
    }
    this.height = top;
    this.fitHeight(MOST);
  }

  fitHeight(most) {
    this.shown = Math.min(this.height, most);
    this.view.style.height = `${this.shown}px`;
    this.spacer.style.height = `${Math.max(this.height - this.shown, 0)}px`;
  }

  get left() {
    return this.width < 620 ? 26 : 136;
  }

  get span() {
    const width = this.width - this.left;
    return { from: this.from, scale: width / (this.until - this.from), width, left: this.left };
  }

  repaint() {
    const paper = (this.paper = onPaper());
    this.fitHeight(paper ? SHEET.most : MOST);
    this.width = paper ? SHEET.width : this.view.clientWidth;
    if (!this.width) return;
    this.ratio = paper ? SHEET.ratio : undefined;
    this.context = fit(this.canvas, this.width, this.shown, this.ratio);
    this.overview = null;
    if (paper) this.draw();
    else this.queue();
  }

  /** How far the lanes are scrolled; on paper from the top wherever all of them fit. */
  get scroll() {
    return Math.min(this.view.scrollTop, this.height - this.shown);
  }

  queue() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.context) this.draw();
    });
  }

  draw() {
    const before = performance.now();
    const { context, trace, state, span, width } = this;
    const pick = (this.pick = colours());
    const options = { matches: this.matches, selected: state.row, ink: pick("ink"), onLayer: pick("on-layer"), accent: pick("accent"), lines: pick("faint"), neutral: pick("layer-0"), text: true };
    const { scroll } = this;
    context.clearRect(0, 0, width, this.shown);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawGround(scroll);
    context.save();
    context.beginPath();
    context.rect(this.left, RULER, width - this.left, this.shown);
    context.clip();
    for (const { line, layer, top } of this.lines) {
      const y = top - scroll;
      if (y > this.shown || y + LINE < RULER) continue;
      paintLine(context, trace, line, span, y, LINE, { ...options, colour: pick(`layer-${layer}`) });
    }
    this.drawLinks(scroll);
    context.restore();
    this.drawTitles(scroll);
    this.blank.show();
    if (this.paper) this.drawForPaper(scroll);
    this.drawRuler();
    this.drawMap();
    this.drawn = performance.now() - before;
  }

  /** What is chosen: the step's stretch, a gap; all else a little darker. */
  drawGround(scroll) {
    const { context, span, pick } = this;
    const stretch = (from, until, colour) => {
      const x = span.left + Math.max((from - span.from) * span.scale, 0), right = span.left + Math.min((until - span.from) * span.scale, span.width);
      if (right <= x) return;
      context.fillStyle = colour;
      context.fillRect(x, RULER, Math.max(right - x, 1), this.shown);
    };
    context.fillStyle = pick("sunk");
    for (const { top, height } of this.titles) context.fillRect(span.left, top - scroll - 3, span.width, height + 5);
    const frame = this.pass.frames[this.state.frame];
    if (frame) stretch(this.pass.start + frame.start, this.pass.start + frame.end, pick("accent-soft"));
    if (this.marked) stretch(...this.marked, pick("accent-soft"));
  }

  drawTitles(scroll) {
    const { context, pick } = this;
    context.fillStyle = pick("card");
    context.fillRect(0, RULER, this.left - 1, this.shown);
    context.font = "600 11px system-ui, sans-serif";
    for (const { layer, top, height } of this.titles) {
      const y = top - scroll;
      if (y + height < RULER || y > this.shown) continue;
      context.fillStyle = pick(`layer-${layer}`);
      context.fillRect(0, Math.max(y, RULER), 4, height - 1);
      context.fillStyle = pick(`layer-${layer}-ink`);
      const title = layer ? `${layer} ${this.trace.story.layers.find((one) => one.number === layer)?.title ?? ""}` : "run";
      context.fillText(this.left > 60 ? title : String(layer || "–"), 11, Math.max(y + LINE / 2, RULER + 9));
    }
  }

  drawRuler() {
    const { context, span, pick } = this;
    const zero = this.pass.start;
    context.fillStyle = pick("card");
    context.fillRect(0, 0, this.width, RULER);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = pick("faint");
    if (this.left > 60) context.fillText(this.zeroWord(), 11, RULER / 2 - 1);
    for (const { at, label } of ticks(this.from - zero, this.until - zero, span.width)) {
      const x = span.left + (at + zero - span.from) * span.scale;
      context.fillStyle = pick("line-strong");
      context.fillRect(x, RULER - 6, 1, 6);
      context.fillStyle = pick("faint");
      if (x + 4 + context.measureText(label).width < this.width) context.fillText(label, x + 4, RULER / 2 - 1);
    }
    context.fillStyle = pick("line");
    context.fillRect(0, RULER - 1, this.width, 1);
  }

  /** What the ruler counts from. */
  zeroWord() {
    const { name } = this.pass;
    const what = this.trace.story.passes.length < 2 ? this.trace.whole : name.length > 10 ? `${name.slice(0, 9)}…` : name;
    return `0 = ${what} begins`;
  }

  /** When a span began, from the ruler's zero and, in another pass, from that one's. */
  placeOf(row) {
    const start = this.trace.start[row], own = this.trace.passOf(row);
    const at = duration(start - this.pass.start);
    return own && own !== this.pass ? `${duration(start - own.start)} into ${own.name}, ${at} on this ruler` : `at ${at}`;
  }

  /** What the screen shows beside the drawing, and how much of it a sheet has no room for. */
  drawForPaper(scroll) {
    const { context, pick, left } = this;
    context.fillStyle = pick("soft");
    context.font = "11px system-ui, sans-serif";
    for (const { word, top } of this.blank.found()) context.fillText(word, left + 8, top - scroll + LINE / 2);
    const seen = this.lines.filter(({ top }) => top >= scroll + RULER && top + LINE <= scroll + this.shown).length;
    this.cut.hidden = seen === this.lines.length;
    this.cut.textContent = `${seen} of ${this.lines.length} lines of spans, as far as the timeline was scrolled.`;
  }

  /** From the launch to the kernel it started, of the span under the pointer or the one chosen. */
  drawLinks(scroll) {
    const { context, trace, span, pick } = this;
    const place = (row) => {
      const line = this.lineOf(row);
      return line && [span.left + (trace.start[row] - span.from) * span.scale, line.top - scroll + LINE / 2];
    };
    context.strokeStyle = pick("accent");
    context.lineWidth = 1.5;
    for (const row of new Set([this.hovered, this.state.row])) {
      if (row < 0) continue;
      const pairs = [...trace.linksFrom(row).map((other) => [other, row]), ...trace.linksTo(row).map((other) => [row, other])];
      for (const [source, target] of pairs.slice(0, 200)) {
        const a = place(source), b = place(target);
        if (!a || !b) continue;
        const bend = Math.max(Math.abs(b[0] - a[0]) / 2, 18);
        context.beginPath();
        context.moveTo(...a);
        context.bezierCurveTo(a[0] + bend, a[1], b[0] - bend, b[1], ...b);
        context.stroke();
      }
    }
  }

  drawMap() {
    const width = this.width;
    this.overview ??= this.paintOverview(width);
    const context = fit(this.map, width, MAP, this.ratio);
    context.drawImage(this.overview, 0, 0, width, MAP);
    const scale = width / Math.max(this.trace.last - this.trace.first, 1);
    const x = (this.from - this.trace.first) * scale, right = (this.until - this.trace.first) * scale;
    context.fillStyle = this.pick("paper");
    context.globalAlpha = 0.72;
    context.fillRect(0, 0, x, MAP);
    context.fillRect(right, 0, width - right, MAP);
    context.globalAlpha = 1;
    context.strokeStyle = this.pick("accent");
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, 0.75, Math.max(right - x - 1.5, 2), MAP - 1.5);
  }

  paintOverview(width) {
    const { trace } = this;
    const canvas = document.createElement("canvas");
    const context = fit(canvas, width, MAP, this.ratio);
    const span = { from: trace.first, scale: width / Math.max(trace.last - trace.first, 1), width, left: 0 };
    const groups = this.groups.filter((group) => group.layer);
    const height = (MAP - 6) / Math.max(groups.length, 1);
    for (const [index, group] of groups.entries()) {
      for (const line of group.lines) paintLine(context, trace, line, span, 3 + index * height, height - 0.5, { colour: this.pick(`layer-${group.layer}`), selected: -1, lines: "transparent", neutral: this.pick("layer-0") });
    }
    return canvas;
  }

  /** The line a row is on; found once for all. */
  lineOf(row) {
    if (!this.lineIndex) {
      this.lineIndex = new Int32Array(this.trace.count).fill(-1);
      this.lines.forEach(({ line }, index) => line.forEach((one) => { this.lineIndex[one] = index; }));
    }
    return this.lines[this.lineIndex[row]];
  }

  /** The row at a point of the canvas, or -1. */
  at(x, y) {
    if (x < this.left || y < RULER) return -1;
    const { trace, span } = this;
    const found = this.lines.find(({ top }) => y + this.view.scrollTop >= top && y + this.view.scrollTop < top + LINE);
    if (!found) return -1;
    const slack = 1.5 / span.scale, at = span.from + (x - span.left) / span.scale;
    const row = found.line[firstAfter(found.line, trace.end, at - slack)];
    return row !== undefined && trace.start[row] <= at + slack ? row : -1;
  }

  timeAt(x) {
    return this.from + (x - this.left) / this.span.scale;
  }

  /** Go to a stretch of time, in a short glide. */
  show(from, until) {
    const least = 50, whole = this.trace.last - this.trace.first;
    if (until - from < least) [from, until] = [from - least / 2, from + least / 2];
    const length = Math.min(until - from, whole * 1.06);
    const low = this.trace.first - whole * 0.03, high = this.trace.last + whole * 0.03;
    from = Math.max(Math.min(from, high - length), low);
    const goal = [from, from + length];
    cancelAnimationFrame(this.gliding);
    if (still() || !this.context) {
      [this.from, this.until] = goal;
      return this.queue();
    }
    const source = [this.from, this.until], start = performance.now();
    const glide = (now) => {
      const part = Math.min(Math.max((now - start) / 220, 0), 1), eased = 1 - (1 - part) ** 3;
      this.from = source[0] + (goal[0] - source[0]) * eased;
      this.until = source[1] + (goal[1] - source[1]) * eased;
      if (part < 1) this.gliding = requestAnimationFrame(glide);
      this.draw();
    };
    this.gliding = requestAnimationFrame(glide);
  }

  /** Zoom by a factor around a time, at once: the hand leads. */
  zoom(factor, around = (this.from + this.until) / 2) {
    cancelAnimationFrame(this.gliding);
    const whole = this.trace.last - this.trace.first;
    const length = Math.min(Math.max((this.until - this.from) * factor, 50), whole * 1.06);
    const part = (around - this.from) / (this.until - this.from);
    this.moveTo(around - part * length, length);
  }

  moveTo(from, length = this.until - this.from) {
    const whole = this.trace.last - this.trace.first;
    const low = this.trace.first - whole * 0.03, high = this.trace.last + whole * 0.03;
    this.from = Math.max(Math.min(from, high - length), low);
    this.until = this.from + length;
    this.queue();
  }

  showPass() {
    const { row } = this.state;
    if (row >= 0 && this.trace.passOf(row) !== this.pass) this.state.set({ row: -1 });
    this.show(this.pass.start, this.pass.end);
  }

  /** The pass that a chosen span lies in is then the one the page is about: all times of it have one zero. */
  choose(row) {
    const pass = row >= 0 ? this.trace.passOf(row) : null;
    this.state.set(pass && pass !== this.pass ? { row, pass: pass.name, frame: -1 } : { row });
  }

  showFrame() {
    const frame = this.pass.frames[this.state.frame];
    if (!frame) return this.show(this.pass.start, this.pass.end);
    const margin = (frame.end - frame.start) * 0.06;
    this.show(this.pass.start + frame.start - margin, this.pass.start + frame.end + margin);
  }

  /** Scroll the page when the drawing is not on the screen; the focus stays where it is. */
  bringIntoView() {
    const { top, bottom } = this.view.getBoundingClientRect();
    const section = this.board.closest("section");
    if (bottom - section.getBoundingClientRect().top <= innerHeight - 64) section.scrollIntoView({ behavior: "instant" });
    else if (top < 60 || bottom > innerHeight) this.view.scrollIntoView({ block: bottom - top > innerHeight - 60 ? "start" : "center", behavior: "instant" });
  }

  /** Choose a span and bring it into view. */
  showRow(row, zoom = true) {
    const { trace } = this;
    const line = this.lineOf(row);
    const length = Math.max(trace.lengthOf(row), 200);
    if (zoom) this.show(trace.start[row] - length * 0.35, trace.end[row] + length * 0.35);
    else if (trace.start[row] > this.until || trace.end[row] < this.from) this.moveTo(trace.start[row] - (this.until - this.from) * 0.3);
    if (line && (line.top < this.view.scrollTop + RULER || line.top + LINE > this.view.scrollTop + this.shown)) this.view.scrollTop = line.top - this.shown / 2;
    this.choose(row);
    announce(`${trace.nameOf(row)}, layer ${trace.layer[row]}, ${duration(trace.lengthOf(row))}`);
  }

  /** A stretch of time that no span owns. */
  mark(from, until) {
    this.marked = [from, until];
    const margin = (until - from) * 0.6;
    this.show(from - margin, until + margin);
  }

  showTip(row, x, y) {
    this.hovered = row;
    this.tip.hidden = row < 0;
    this.canvas.style.cursor = row < 0 ? "" : "pointer";
    if (row >= 0) {
      const { trace } = this;
      this.tip.replaceChildren(h("b", {}, trace.nameOf(row)), h("span", {}, `layer ${trace.layer[row]} · ${duration(trace.lengthOf(row))} · ${this.placeOf(row)}`));
      const wide = this.tip.offsetWidth, high = this.tip.offsetHeight;
      this.tip.style.left = `${Math.max(Math.min(x + 14, this.width - wide - 6), 4)}px`;
      this.tip.style.top = `${MAP + (y + high + 24 > this.shown ? y - high - 10 : y + 18)}px`;
    }
    this.queue();
  }
}
