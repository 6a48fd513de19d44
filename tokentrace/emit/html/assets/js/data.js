/* The trace as columns. Row 0 is the root; parents come before their children. Times are ns after the first start. */

import { inflate } from "./inflate.js";

/** The trace in the page's data element. Rejects when the data is damaged. */
export async function load(text) {
  const bytes = await inflate(unpack(text));
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  return new Trace(header, bytes.subarray(4 + length));
}

function unpack(text) {
  const raw = atob(text.replace(/\s+/g, ""));
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** LEB128 numbers into `out`; exact to 2^53. */
function unsigned(bytes, [offset], out) {
  let at = offset;
  for (let i = 0; i < out.length; i++) {
    let byte = bytes[at++], value = byte & 127, scale = 128;
    while (byte > 127) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    }
    out[i] = value;
  }
  return out;
}

/** Zigzag-coded ones: the lowest bit is the sign, and is taken off first so that the rest stays exact. */
function signed(bytes, [offset], out) {
  let at = offset;
  for (let i = 0; i < out.length; i++) {
    let byte = bytes[at++];
    const negative = byte & 1;
    let value = (byte & 127) >> 1, scale = 64;
    while (byte > 127) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    }
    out[i] = negative ? -value - 1 : value;
  }
  return out;
}

class Trace {
  constructor(header, bytes) {
    Object.assign(this, { header, bytes, count: header.count, names: header.names, story: header.story });
    const { columns, count } = header;
    const column = (name, Kind) => unsigned(bytes, columns[name], new Kind(count));
    this.start = signed(bytes, columns.start, new Float64Array(count));
    this.end = column("length", Float64Array);
    for (let row = 0, at = 0; row < count; row++) {
      at = this.start[row] += at;
      this.end[row] += at;
    }
    this.parent = column("parent", Int32Array);
    for (let row = 0; row < count; row++) this.parent[row] = this.parent[row] ? row - this.parent[row] : -1;
    this.name = column("name", Int32Array);
    this.marks = new Set(this.story.marks.map((name) => this.names.indexOf(name)));
    this.layer = column("layer", Uint8Array);
    this.way = column("way", Uint8Array);
    this.process = column("process", Int32Array);
    this.thread = column("thread", Int32Array);
    this.shape = column("shape", Int32Array);
    this.envelope = column("envelope", Uint8Array);
    this.first = Math.min(...this.story.passes.map((one) => one.start), this.start[0] ?? 0);
    this.last = this.end.reduce((most, end) => Math.max(most, end), 0);
    this.texts = header.texts;
    this.read = new Map();
  }

  /** Does the span only say why its layer left none? */
  isMark(row) {
    return this.marks.has(this.name[row]);
  }

  /** What this page is about, in a word. */
  get whole() {
    return this.story.recording ? "recording" : "request";
  }

  /** Whether the passes are the calls of a program, named after its stages. */
  get chain() {
    const { passes } = this.story;
    return passes.length > 1 && passes.some((pass) => !["cold", "warm", "deep", "once"].includes(pass.name));
  }

  /** What one of several passes is called. */
  get part() {
    return this.chain ? "call" : "pass";
  }

  nameOf(row) {
    return this.names[this.name[row]];
  }

  lengthOf(row) {
    return this.end[row] - this.start[row];
  }

  /** The pass a row lies in, or null for what is outside of every request. */
  passOf(row) {
    const passes = this.story.passes;
    for (let at = row; at >= 0; at = this.parent[at]) {
      const found = passes.find((one) => one.row === at);
      if (found) return found;
    }
    return passes.length === 1 ? passes[0] : null;
  }

  /** [[key, value], …] of one row; columns are read when they are first asked for. */
  attributes(row) {
    const { columns } = this.header.shapes[this.shape[row]];
    const at = this.#ordinals()[row];
    const members = this.members[this.shape[row]];
    return columns.map((column) => {
      const [key, kind, offset] = column;
      if (!this.read.has(column)) this.read.set(column, (kind === "number" ? signed : unsigned)(this.bytes, [offset], new Float64Array(members)));
      const value = this.read.get(column)[at];
      return [key, kind === "number" ? value : JSON.parse(this.texts[value])];
    });
  }

  /** For each row its place among the rows of its shape. */
  #ordinals() {
    if (!this.ordinal) {
      this.members = new Int32Array(this.header.shapes.length);
      this.ordinal = this.shape.map((shape) => this.members[shape]++);
    }
    return this.ordinal;
  }

  children(row) {
    if (!this.firstChild) {
      this.firstChild = new Int32Array(this.count).fill(-1);
      this.nextSibling = new Int32Array(this.count).fill(-1);
      for (let at = this.count - 1; at > 0; at--) {
        this.nextSibling[at] = this.firstChild[this.parent[at]];
        this.firstChild[this.parent[at]] = at;
      }
    }
    const found = [];
    for (let at = this.firstChild[row]; at >= 0; at = this.nextSibling[at]) found.push(at);
    return found.sort((a, b) => this.start[a] - this.start[b]);
  }

  /** Time of a row that none of its children covers. */
  selfTime(row) {
    let covered = 0, until = this.start[row];
    for (const child of this.children(row)) {
      const from = Math.max(this.start[child], until), to = Math.min(this.end[child], this.end[row]);
      if (to > from) {
        covered += to - from;
        until = to;
      }
    }
    return this.lengthOf(row) - covered;
  }

  linksFrom(row) {
    return this.header.links[row] ?? [];
  }

  linksTo(row) {
    if (!this.linked) {
      this.linked = new Map();
      for (const [from, targets] of Object.entries(this.header.links)) {
        for (const target of targets) this.linked.set(target, [...(this.linked.get(target) ?? []), Number(from)]);
      }
    }
    return this.linked.get(row) ?? [];
  }

  events(row) {
    return this.header.events[row] ?? [];
  }

  status(row) {
    return this.header.statuses[row] ?? [0, ""];
  }
}
