/* Mouse, touch and keys on the timeline. */

/** Pixels that a hand trembles. */
const STILL = 4;

export function listen(timeline) {
  const { canvas, map } = timeline;
  let grip = null;
  const spot = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const [x, y] = spot(event);
    grip = { x, y, from: timeline.from, scroll: timeline.view.scrollTop, moved: false, choosing: event.shiftKey || y < 24 };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = spot(event);
    if (!grip) return timeline.showTip(timeline.at(x, y), x, y);
    grip.moved ||= Math.hypot(x - grip.x, y - grip.y) > STILL;
    if (!grip.moved) return;
    if (grip.choosing) timeline.marked = [timeline.timeAt(Math.min(x, grip.x)), timeline.timeAt(Math.max(x, grip.x))];
    else {
      canvas.classList.add("dragging");
      timeline.moveTo(grip.from - (x - grip.x) / timeline.span.scale);
      if (event.pointerType === "mouse") timeline.view.scrollTop = grip.scroll - (y - grip.y);
    }
    timeline.queue();
  });
  const release = (event) => {
    if (!grip) return;
    const [x, y] = spot(event);
    if (!grip.moved) timeline.choose(timeline.at(x, y));
    else if (grip.choosing) {
      const [from, until] = timeline.marked;
      timeline.marked = null;
      timeline.show(from, until);
    }
    canvas.classList.remove("dragging");
    grip = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", () => { grip = null; });
  canvas.addEventListener("pointerleave", () => { if (!grip) timeline.showTip(-1); });
  canvas.addEventListener("dblclick", (event) => {
    const row = timeline.at(...spot(event));
    if (row >= 0) timeline.showRow(row);
    else timeline.show(timeline.pass.start, timeline.pass.end);
  });
  canvas.addEventListener("wheel", (event) => wheel(timeline, event, spot(event)[0]), { passive: false });
  canvas.addEventListener("keydown", (event) => keys(timeline, event));
  listenMap(timeline, map);
}

/** Without Ctrl the wheel scrolls the page, as everywhere. */
function wheel(timeline, event, x) {
  const length = timeline.until - timeline.from;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    timeline.zoom(Math.exp(Math.max(Math.min(event.deltaY, 120), -120) * 0.006), timeline.timeAt(x));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    timeline.moveTo(timeline.from + ((event.deltaX || event.deltaY) / timeline.span.width) * length);
  }
}

function keys(timeline, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const length = timeline.until - timeline.from;
  const actions = event.shiftKey
    ? { ArrowUp: () => kin(timeline, "up"), ArrowDown: () => kin(timeline, "down"), ArrowLeft: () => kin(timeline, -1), ArrowRight: () => kin(timeline, 1), "+": () => timeline.zoom(0.6) }
    : {
        ArrowLeft: () => timeline.moveTo(timeline.from - length * 0.15),
        ArrowRight: () => timeline.moveTo(timeline.from + length * 0.15),
        ArrowUp: () => { timeline.view.scrollTop -= 40; },
        ArrowDown: () => { timeline.view.scrollTop += 40; },
        "+": () => timeline.zoom(0.6),
        "=": () => timeline.zoom(0.6),
        "-": () => timeline.zoom(1 / 0.6),
        0: () => timeline.show(timeline.pass.start, timeline.pass.end),
        Home: () => timeline.show(timeline.pass.start, timeline.pass.end),
        Enter: () => (timeline.state.row >= 0 ? timeline.showRow(timeline.state.row) : kin(timeline, "down")),
      };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}

/** From the chosen span to its parent, its first child, or a sibling; from none to the request. */
function kin(timeline, way) {
  const { trace, state } = timeline;
  if (state.row < 0) return timeline.showRow(timeline.pass.request, false);
  const shown = (rows) => rows.filter((row) => timeline.lineOf(row));
  const parent = trace.parent[state.row];
  let next = -1;
  if (way === "up") next = parent;
  else if (way === "down") next = shown(trace.children(state.row))[0] ?? -1;
  else if (parent >= 0) {
    const siblings = shown(trace.children(parent));
    next = siblings[siblings.indexOf(state.row) + way] ?? -1;
  }
  if (next >= 0) timeline.showRow(next, false);
}

function listenMap(timeline, map) {
  let holding = false;
  const move = (event) => {
    const box = map.getBoundingClientRect();
    const { first, last } = timeline.trace;
    const at = first + ((event.clientX - box.left) / box.width) * (last - first);
    timeline.moveTo(at - (timeline.until - timeline.from) / 2);
  };
  map.addEventListener("pointerdown", (event) => {
    holding = true;
    map.setPointerCapture(event.pointerId);
    move(event);
  });
  map.addEventListener("pointermove", (event) => { if (holding) move(event); });
  map.addEventListener("pointerup", () => { holding = false; });
  map.addEventListener("pointercancel", () => { holding = false; });
}
