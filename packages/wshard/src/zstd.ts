/** A small zstd compressor: greedy matches, literals as they are, the predefined codes. Any zstd reads what it makes. */

const BLOCK_BYTES = 128 << 10;
const MAX_WINDOW_LOG = 23;
const MIN_MATCH = 4;
const HASH_BITS = 16;

interface Code {
  log: number;
  states: Uint16Array;
  deltaBits: Int32Array;
  deltaState: Int32Array;
}

/** The tables with which symbols of these frequencies are written; -1 stands for less than one. */
function codeOf(log: number, counts: number[]): Code {
  const size = 1 << log;
  const symbols = new Uint8Array(size);
  const first: number[] = [0];
  let free = size - 1;
  counts.forEach((count, symbol) => {
    if (count === -1) symbols[free--] = symbol;
    first.push(first[symbol]! + Math.abs(count));
  });
  let at = 0;
  counts.forEach((count, symbol) => {
    for (let i = 0; i < count; i++) {
      symbols[at] = symbol;
      do at = (at + (size >> 1) + (size >> 3) + 3) & (size - 1);
      while (at > free);
    }
  });
  const states = new Uint16Array(size);
  const next = first.slice();
  symbols.forEach((symbol, index) => {
    states[next[symbol]!++] = size + index;
  });
  const deltaBits = new Int32Array(counts.length);
  const deltaState = new Int32Array(counts.length);
  counts.forEach((count, symbol) => {
    const weight = Math.abs(count);
    const bits = weight <= 1 ? log : log - (31 - Math.clz32(weight - 1));
    deltaBits[symbol] = (bits << 16) - (weight << bits);
    deltaState[symbol] = first[symbol]! - weight;
  });
  return { log, states, deltaBits, deltaState };
}

const ones = (count: number) => new Array<number>(count).fill(1);
const twos = (count: number) => new Array<number>(count).fill(2);
const rare = (count: number) => new Array<number>(count).fill(-1);
const LITERALS = codeOf(6, [4, 3, ...twos(11), 1, 1, 1, ...twos(9), 3, 2, 1, 1, 1, 1, 1, ...rare(4)]);
const MATCHES = codeOf(6, [1, 4, 3, ...twos(6), ...ones(37), ...rare(7)]);
const OFFSETS = codeOf(5, [...ones(6), 2, 2, 2, ...ones(15), ...rare(5)]);

/** Bits and first value of each code of a length. */
function ranges(start: number, plain: number, bits: number[]): [number[], number[]] {
  const extra = [...new Array<number>(plain).fill(0), ...bits];
  const from: number[] = [];
  let value = start;
  for (const each of extra) {
    from.push(value);
    value += 1 << each;
  }
  return [extra, from];
}

const [LITERAL_BITS, LITERAL_FROM] = ranges(0, 16, [1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const [MATCH_BITS, MATCH_FROM] = ranges(3, 32, [1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);

function codeFor(value: number, from: number[]): number {
  let code = Math.min(value - from[0]!, from.length - 1);
  while (from[code]! > value) code--;
  return code;
}

/** Bits, lowest first, as the format reads them from its end. */
class BitWriter {
  readonly out: number[] = [];
  #bits = 0;
  #count = 0;

  add(value: number, count: number): void {
    this.#bits |= (value & ((1 << count) - 1)) << this.#count;
    this.#count += count;
    while (this.#count >= 8) {
      this.out.push(this.#bits & 255);
      this.#bits >>>= 8;
      this.#count -= 8;
    }
  }

  /** The mark that ends the bits. */
  close(): void {
    this.add(1, 1);
    if (this.#count) this.out.push(this.#bits & 255);
  }
}

class State {
  #state = 0;
  constructor(
    readonly code: Code,
    readonly bits: BitWriter,
  ) {}

  start(symbol: number): void {
    const { deltaBits, deltaState, states } = this.code;
    const count = (deltaBits[symbol]! + (1 << 15)) >> 16;
    this.#state = states[(((count << 16) - deltaBits[symbol]!) >> count) + deltaState[symbol]!]!;
  }

  put(symbol: number): void {
    const { deltaBits, deltaState, states } = this.code;
    const count = (this.#state + deltaBits[symbol]!) >> 16;
    this.bits.add(this.#state, count);
    this.#state = states[(this.#state >> count) + deltaState[symbol]!]!;
  }

  end(): void {
    this.bits.add(this.#state, this.code.log);
  }
}

type Sequence = [literals: number, match: number, offset: number];

function writeSequences(sequences: Sequence[]): number[] {
  const bits = new BitWriter();
  const literalState = new State(LITERALS, bits);
  const matchState = new State(MATCHES, bits);
  const offsetState = new State(OFFSETS, bits);
  for (let index = sequences.length - 1; index >= 0; index--) {
    const [literals, match, offset] = sequences[index]!;
    const literalCode = codeFor(literals, LITERAL_FROM);
    const matchCode = codeFor(match, MATCH_FROM);
    const offsetCode = 31 - Math.clz32(offset + 3);
    const step = index === sequences.length - 1 ? "start" : "put";
    offsetState[step](offsetCode);
    matchState[step](matchCode);
    literalState[step](literalCode);
    bits.add(literals - LITERAL_FROM[literalCode]!, LITERAL_BITS[literalCode]!);
    bits.add(match - MATCH_FROM[matchCode]!, MATCH_BITS[matchCode]!);
    bits.add(offset + 3 - (1 << offsetCode), offsetCode);
  }
  matchState.end();
  offsetState.end();
  literalState.end();
  bits.close();
  return bits.out;
}

/** The bytes [start, end) as a compressed block, or undefined where that saves nothing. */
function writeBlock(
  data: Uint8Array,
  start: number,
  end: number,
  seen: Int32Array,
  window: number,
): Uint8Array | undefined {
  const sequences: Sequence[] = [];
  const literals = new Uint8Array(end - start);
  let literalCount = 0;
  let anchor = start;
  const hashAt = (at: number) =>
    Math.imul(data[at]! | (data[at + 1]! << 8) | (data[at + 2]! << 16) | (data[at + 3]! << 24), 0x9e3779b1) >>>
    (32 - HASH_BITS);
  const takeLiterals = (to: number) => {
    literals.set(data.subarray(anchor, to), literalCount);
    literalCount += to - anchor;
  };
  for (let at = start; at + MIN_MATCH <= end; ) {
    const hash = hashAt(at);
    const from = seen[hash]! - 1;
    seen[hash] = at + 1;
    let length = 0;
    if (from >= 0 && at - from <= window)
      while (at + length < end && data[from + length] === data[at + length]) length++;
    if (length < MIN_MATCH) {
      at += 1 + ((at - anchor) >> 7); // what has not matched for long is looked at less closely
      continue;
    }
    sequences.push([at - anchor, length, at - from]);
    takeLiterals(at);
    at += length;
    anchor = at;
  }
  takeLiterals(end);
  const { length } = sequences;
  if (!length) return undefined;
  const literalHeader =
    literalCount < 32
      ? [literalCount << 3]
      : literalCount < 4096
        ? [((literalCount << 4) | 4) & 255, literalCount >> 4]
        : [((literalCount << 4) | 12) & 255, (literalCount >> 4) & 255, literalCount >> 12];
  const countHeader =
    length < 128
      ? [length]
      : length < 0x7f00
        ? [(length >> 8) + 128, length & 255]
        : [255, (length - 0x7f00) & 255, (length - 0x7f00) >> 8];
  const tail = [...countHeader, 0];
  const coded = writeSequences(sequences);
  const size = literalHeader.length + literalCount + tail.length + coded.length;
  if (size >= end - start) return undefined;
  const out = new Uint8Array(size);
  out.set(literalHeader);
  out.set(literals.subarray(0, literalCount), literalHeader.length);
  out.set(tail, literalHeader.length + literalCount);
  out.set(coded, size - coded.length);
  return out;
}

/** One zstd frame with its content size. */
export function encodeZstd(data: Uint8Array): Uint8Array {
  const windowLog = Math.min(MAX_WINDOW_LOG, Math.max(10, 32 - Math.clz32(Math.max(1, data.length) - 1)));
  const blockBytes = Math.min(BLOCK_BYTES, 1 << windowLog);
  const header = new DataView(new ArrayBuffer(14));
  header.setUint32(0, 0xfd2fb528, true);
  header.setUint8(4, 3 << 6);
  header.setUint8(5, (windowLog - 10) << 3);
  header.setBigUint64(6, BigInt(data.length), true);
  const parts: Uint8Array[] = [new Uint8Array(header.buffer)];
  const seen = new Int32Array(1 << HASH_BITS);
  let start = 0;
  do {
    const end = Math.min(data.length, start + blockBytes);
    const raw = data.subarray(start, end);
    const isOne = raw.length > 1 && raw.every((byte) => byte === raw[0]);
    const packed = isOne ? raw.subarray(0, 1) : writeBlock(data, start, end, seen, 1 << windowLog);
    const type = isOne ? 1 : packed ? 2 : 0;
    const size = type === 2 ? packed!.length : raw.length;
    const mark = (size << 3) | (type << 1) | (end === data.length ? 1 : 0);
    parts.push(Uint8Array.of(mark & 255, (mark >> 8) & 255, mark >> 16), packed ?? raw);
    start = end;
  } while (start < data.length);
  const out = new Uint8Array(parts.reduce((sum, each) => sum + each.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
