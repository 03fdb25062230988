/** CRC32C, XXH64 and FNV-1a-64. XXH64 works on 32-bit halves: BigInt would be too slow for frames. */
import { viewOf } from "./bytes.js";

const TABLES: Uint32Array[] = [];

function tables(): Uint32Array[] {
  for (let k = 0; TABLES.length < 8; k++) {
    const table = new Uint32Array(256);
    for (let i = 0; i < 256; i++) {
      let value = i;
      if (k === 0) for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
      else {
        const before = (TABLES[k - 1] as Uint32Array)[i] as number;
        value = (before >>> 8) ^ ((TABLES[0] as Uint32Array)[before & 255] as number);
      }
      table[i] = value;
    }
    TABLES.push(table);
  }
  return TABLES;
}

/** CRC32C (Castagnoli) of `data`, going on from the checksum of what came before it. */
export function crc32c(data: Uint8Array, before = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = tables() as [
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
    Uint32Array,
  ];
  const b = data as unknown as number[]; // every index below is inside
  let crc = ~before;
  let at = 0;
  for (const end = data.length - 7; at < end; at += 8) {
    const low = crc ^ (b[at]! | (b[at + 1]! << 8) | (b[at + 2]! << 16) | (b[at + 3]! << 24));
    crc =
      t7[low & 255]! ^
      t6[(low >>> 8) & 255]! ^
      t5[(low >>> 16) & 255]! ^
      t4[low >>> 24]! ^
      t3[b[at + 4]!]! ^
      t2[b[at + 5]!]! ^
      t1[b[at + 6]!]! ^
      t0[b[at + 7]!]!;
  }
  for (; at < data.length; at++) crc = (crc >>> 8) ^ t0[(crc ^ b[at]!) & 255]!;
  return ~crc >>> 0;
}

// The five primes of XXH64, high and low halves.
const P1H = 0x9e3779b1;
const P1L = 0x85ebca87;
const P2H = 0xc2b2ae3d;
const P2L = 0x27d4eb4f;
const P3H = 0x165667b1;
const P3L = 0x9e3779f9;
const P4H = 0x85ebca77;
const P4L = 0xc2b2ae63;
const P5H = 0x27d4eb2f;
const P5L = 0x165667c5;

// The result of the last operation: two halves, without an object per step.
let high = 0;
let low = 0;

function add(ah: number, al: number, bh: number, bl: number): void {
  const sum = (al >>> 0) + (bl >>> 0);
  low = sum >>> 0;
  high = (ah + bh + (sum > 0xffffffff ? 1 : 0)) >>> 0;
}

function multiply(ah: number, al: number, bh: number, bl: number): void {
  const a0 = al & 0xffff;
  const a1 = al >>> 16;
  const b0 = bl & 0xffff;
  const b1 = bl >>> 16;
  const low0 = a0 * b0;
  const mid = a1 * b0 + (low0 >>> 16);
  const mid2 = a0 * b1 + (mid % 0x10000);
  const carried = a1 * b1 + Math.floor(mid / 0x10000) + Math.floor(mid2 / 0x10000);
  low = (((mid2 & 0xffff) << 16) | (low0 & 0xffff)) >>> 0;
  high = (Math.imul(ah, bl) + Math.imul(al, bh) + (carried | 0)) >>> 0;
}

function rotate(bits: number): void {
  const h = high;
  const l = low;
  if (bits < 32) {
    high = ((h << bits) | (l >>> (32 - bits))) >>> 0;
    low = ((l << bits) | (h >>> (32 - bits))) >>> 0;
  } else {
    const rest = bits - 32;
    high = rest ? ((l << rest) | (h >>> (32 - rest))) >>> 0 : l;
    low = rest ? ((h << rest) | (l >>> (32 - rest))) >>> 0 : h;
  }
}

function round(ah: number, al: number, lh: number, ll: number): void {
  multiply(lh, ll, P2H, P2L);
  add(ah, al, high, low);
  rotate(31);
  multiply(high, low, P1H, P1L);
}

function xorShift(bits: number): void {
  if (bits < 32) {
    const shifted = high >>> bits;
    low = (low ^ ((low >>> bits) | (high << (32 - bits)))) >>> 0;
    high = (high ^ shifted) >>> 0;
  } else low = (low ^ (high >>> (bits - 32))) >>> 0;
}

/** XXH64 with seed 0, as its high and low 32 bits. */
export function xxh64(data: Uint8Array): [number, number] {
  const view = viewOf(data);
  const size = data.length;
  let at = 0;
  if (size >= 32) {
    add(P1H, P1L, P2H, P2L);
    const h = [high, P2H, 0, ~P1H >>> 0];
    const l = [low, P2L, 0, -P1L >>> 0];
    for (; at <= size - 32; at += 32) {
      for (let lane = 0; lane < 4; lane++) {
        const from = at + lane * 8;
        round(h[lane]!, l[lane]!, view.getUint32(from + 4, true), view.getUint32(from, true));
        h[lane] = high;
        l[lane] = low;
      }
    }
    let sumH = 0;
    let sumL = 0;
    const turns = [1, 7, 12, 18];
    for (let lane = 0; lane < 4; lane++) {
      high = h[lane]!;
      low = l[lane]!;
      rotate(turns[lane]!);
      add(sumH, sumL, high, low);
      sumH = high;
      sumL = low;
    }
    for (let lane = 0; lane < 4; lane++) {
      round(0, 0, h[lane]!, l[lane]!);
      multiply((sumH ^ high) >>> 0, (sumL ^ low) >>> 0, P1H, P1L);
      add(high, low, P4H, P4L);
      sumH = high;
      sumL = low;
    }
  } else {
    high = P5H;
    low = P5L;
  }
  add(high, low, Math.floor(size / 0x100000000), size >>> 0);
  let h = high;
  let l = low;
  for (; at <= size - 8; at += 8) {
    round(0, 0, view.getUint32(at + 4, true), view.getUint32(at, true));
    high = (h ^ high) >>> 0;
    low = (l ^ low) >>> 0;
    rotate(27);
    multiply(high, low, P1H, P1L);
    add(high, low, P4H, P4L);
    h = high;
    l = low;
  }
  if (at <= size - 4) {
    multiply(0, view.getUint32(at, true), P1H, P1L);
    high = (h ^ high) >>> 0;
    low = (l ^ low) >>> 0;
    rotate(23);
    multiply(high, low, P2H, P2L);
    add(high, low, P3H, P3L);
    h = high;
    l = low;
    at += 4;
  }
  for (; at < size; at++) {
    multiply(0, data[at]!, P5H, P5L);
    high = (h ^ high) >>> 0;
    low = (l ^ low) >>> 0;
    rotate(11);
    multiply(high, low, P1H, P1L);
    h = high;
    l = low;
  }
  high = h;
  low = l;
  xorShift(33);
  multiply(high, low, P2H, P2L);
  xorShift(29);
  multiply(high, low, P3H, P3L);
  xorShift(32);
  return [high, low];
}

/** FNV-1a-64, which one existing writer uses for the hashes of names. */
export function fnv1a64(data: Uint8Array): [number, number] {
  let h = 0xcbf29ce4;
  let l = 0x84222325;
  for (const byte of data) {
    multiply(h, (l ^ byte) >>> 0, 0x100, 0x1b3);
    h = high;
    l = low;
  }
  return [h, l];
}
