/* zlib data (RFC 1950, 1951) as bytes: by the browser where it can, else by the reader below. */

export async function inflate(packed) {
  if (typeof DecompressionStream === "function") {
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  return inflateHere(packed);
}

const LENGTH_BASE = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const LENGTH_BITS = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
const FAR_BASE = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577];
const FAR_BITS = [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13];
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/** RFC 1951, section 3.2. Throws an Error for data that ends early or is not zlib's. */
export function inflateHere(packed) {
  const input = { bytes: packed, at: 2, bit: 0, held: 0 };
  const out = { bytes: new Uint8Array(packed.length * 6 + 1024), length: 0 };
  if ((packed[0] & 15) !== 8) throw new Error("the data of this page is not zlib data");
  for (let last = false; !last; ) {
    last = bits(input, 1) === 1;
    const kind = bits(input, 2);
    if (kind === 0) copyStored(input, out);
    else if (kind === 1) readBlock(input, out, ...fixed());
    else if (kind === 2) readBlock(input, out, ...described(input));
    else throw new Error("the data of this page is damaged");
  }
  return out.bytes.subarray(0, out.length);
}

function bits(input, wanted) {
  while (input.bit < wanted) {
    if (input.at >= input.bytes.length) throw new Error("the data of this page ends early");
    input.held |= input.bytes[input.at++] << input.bit;
    input.bit += 8;
  }
  const value = input.held & ((1 << wanted) - 1);
  input.held >>>= wanted;
  input.bit -= wanted;
  return value;
}

function room(out, more) {
  if (out.length + more <= out.bytes.length) return;
  const larger = new Uint8Array(Math.max(out.bytes.length * 2, out.length + more));
  larger.set(out.bytes.subarray(0, out.length));
  out.bytes = larger;
}

function copyStored(input, out) {
  input.held = input.bit = 0;
  const length = input.bytes[input.at] | (input.bytes[input.at + 1] << 8);
  input.at += 4;
  room(out, length);
  out.bytes.set(input.bytes.subarray(input.at, input.at + length), out.length);
  out.length += length;
  input.at += length;
}

/** How many codes there are of each length, and the symbols in the order of their codes. */
function table(lengths) {
  const counts = new Uint16Array(16);
  const symbols = new Uint16Array(lengths.length);
  for (const length of lengths) counts[length]++;
  counts[0] = 0;
  const next = new Uint16Array(17);
  for (let length = 1; length < 16; length++) next[length + 1] = next[length] + counts[length];
  lengths.forEach((length, symbol) => { if (length) symbols[next[length]++] = symbol; });
  return { counts, symbols };
}

function symbol(input, codes) {
  let code = 0, first = 0, index = 0;
  for (let length = 1; length < 16; length++) {
    code |= bits(input, 1);
    const here = codes.counts[length];
    if (code - here < first) return codes.symbols[index + code - first];
    index += here;
    first = (first + here) << 1;
    code <<= 1;
  }
  throw new Error("the data of this page is damaged");
}

function fixed() {
  const lengths = Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
  return [table(lengths), table(new Array(30).fill(5))];
}

function described(input) {
  const literals = bits(input, 5) + 257, far = bits(input, 5) + 1, given = bits(input, 4) + 4;
  const short = new Array(19).fill(0);
  for (let i = 0; i < given; i++) short[ORDER[i]] = bits(input, 3);
  const codes = table(short), lengths = [];
  while (lengths.length < literals + far) {
    const next = symbol(input, codes);
    if (next < 16) lengths.push(next);
    else {
      const value = next === 16 ? lengths[lengths.length - 1] : 0;
      const repeat = next === 16 ? 3 + bits(input, 2) : next === 17 ? 3 + bits(input, 3) : 11 + bits(input, 7);
      for (let i = 0; i < repeat; i++) lengths.push(value);
    }
  }
  return [table(lengths.slice(0, literals)), table(lengths.slice(literals))];
}

function readBlock(input, out, literals, far) {
  for (;;) {
    const next = symbol(input, literals);
    if (next === 256) return;
    if (next < 256) {
      room(out, 1);
      out.bytes[out.length++] = next;
      continue;
    }
    const length = LENGTH_BASE[next - 257] + bits(input, LENGTH_BITS[next - 257]);
    const place = symbol(input, far);
    const distance = FAR_BASE[place] + bits(input, FAR_BITS[place]);
    room(out, length);
    for (let i = 0; i < length; i++, out.length++) out.bytes[out.length] = out.bytes[out.length - distance];
  }
}
