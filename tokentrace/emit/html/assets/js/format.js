/* Numbers as people read them, the same way the terminal report writes them. */

const UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9], ["min", 6e10]];

export const known = (value) => value !== null && value !== undefined;

/** Three significant digits with the unit that fits: 940 ns, 3.21 µs, 85.0 ms. */
export function duration(ns) {
  if (!known(ns)) return "–";
  const sign = ns < 0 ? "-" : "";
  const value = Math.abs(ns);
  for (const [unit, size] of UNITS) {
    const number = value / size;
    if (number < (unit === "s" ? 60 : 999.5) || unit === "min") {
      if (unit === "ns") return `${sign}${number.toFixed(0)} ns`;
      return `${sign}${number.toFixed(number < 9.995 ? 2 : number < 99.95 ? 1 : 0)} ${unit}`;
    }
  }
  return "";
}

/** Per cent: 0 %, <0.1 %, 3.2 %, 87 %; 100 % only for all of it. */
export function share(part, whole) {
  if (!(whole > 0)) return "0 %";
  const value = (100 * part) / whole;
  if (value === 0 || value === 100) return `${value} %`;
  if (value < 0.1) return "<0.1 %";
  if (value >= 99 && value < 100) return `${Math.min(value, 99.9).toFixed(1)} %`;
  return value < 9.95 ? `${value.toFixed(1)} %` : `${value.toFixed(0)} %`;
}

/** What a layer's time holds beside its own, where the layers below were left out or only the deep pass saw them; "" where it is its own alone. */
export function held(row) {
  const below = row.holds ?? [];
  if (!below.length) return "";
  const last = below[below.length - 1];
  return below.length < 2 ? `with layer ${last}, not told apart` : `with layers ${below[0]} ${below.length > 2 ? "to" : "and"} ${last}, not told apart`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** A token's text with its blanks to be seen. */
export function visible(text) {
  return text.replace(/^ | $/g, "·").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

export function median(values) {
  const sorted = values.filter(known).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export function size(bytes) {
  return bytes < 1e4 ? `${bytes} bytes` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** A fact of any type as one line. */
export function plain(value) {
  if (typeof value === "string") return value;
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(6));
  return JSON.stringify(value);
}

/** A time under a name that ends in its unit gets that unit: `encode_ns` 204236 becomes "encode" "204 µs". */
export function fact(key, value) {
  if (typeof value === "number" && key.endsWith("_ns")) return [words(key.slice(0, -3)), duration(value)];
  if (typeof value === "number" && key.endsWith("_bytes")) return [words(key.slice(0, -6)), size(value)];
  return [words(key), plain(value)];
}

function words(key) {
  return key.replace(/^tokentrace\./, "").replaceAll("_", " ").replaceAll(".", " ");
}
