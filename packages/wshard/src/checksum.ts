/** CRC32C, XXH64 and FNV-1a-64. The stripes of XXH64 work on 32-bit halves: BigInt would be too slow for frames. */
import { viewOf } from "./bytes.js";

/** Eight tables one behind the other, made when the first checksum is wanted. */
let tables: Uint32Array | undefined;

function makeTables(): Uint32Array {
  const t = new Uint32Array(2048);
  for (let i = 0; i < 2048; i++) {
    let value = i;
    if (i < 256) for (let bit = 0; bit < 8; bit++) value = (value >>> 1) ^ (value & 1 && 0x82f63b78);
    else value = (t[i - 256]! >>> 8) ^ t[t[i - 256]! & 255]!;
    t[i] = value;
  }
  return t;
}

/** CRC32C (Castagnoli) of `data`, going on from the checksum of what came before it. */
export function crc32c(data: Uint8Array, before = 0): number {
  tables ??= makeTables();
  const t = tables;
  const b = data as unknown as number[]; // every index below is inside
  let crc = ~before;
  let at = 0;
  for (const end = data.length - 7; at < end; at += 8) {
    const low = crc ^ (b[at]! | (b[at + 1]! << 8) | (b[at + 2]! << 16) | (b[at + 3]! << 24));
    crc =
      t[1792 + (low & 255)]! ^
      t[1536 + ((low >>> 8) & 255)]! ^
      t[1280 + ((low >>> 16) & 255)]! ^
      t[1024 + (low >>> 24)]! ^
      t[768 + b[at + 4]!]! ^
      t[512 + b[at + 5]!]! ^
      t[256 + b[at + 6]!]! ^
      t[b[at + 7]!]!;
  }
  for (; at < data.length; at++) crc = (crc >>> 8) ^ t[(crc ^ b[at]!) & 255]!;
  return ~crc >>> 0;
}

const P1 = 0x9e3779b185ebca87n;
const P2 = 0xc2b2ae3d27d4eb4fn;
const P3 = 0x165667b19e3779f9n;
const P4 = 0x85ebca77c2b2ae63n;
const P5 = 0x27d4eb2f165667c5n;

const cut = (value: bigint): bigint => BigInt.asUintN(64, value);
const rotate = (value: bigint, bits: bigint): bigint => cut(value << bits) | (value >> (64n - bits));
const round = (sum: bigint, input: bigint): bigint => cut(rotate(cut(sum + input * P2), 31n) * P1);

// The result of the last multiplication: two halves, without an object per step.
let high = 0;
let low = 0;

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

/** The four sums over all whole stripes of 32 bytes: `round`, on halves, because of its speed. */
function stripes(view: DataView): bigint[] {
  const h = [0x60ea27ee, 0xc2b2ae3d, 0, 0x61c8864e];
  const l = [0xadc0b5d6, 0x27d4eb4f, 0, 0x7a143579];
  for (let at = 0; at + 32 <= view.byteLength; at += 32) {
    for (let lane = 0; lane < 4; lane++) {
      multiply(view.getUint32(at + lane * 8 + 4, true), view.getUint32(at + lane * 8, true), 0xc2b2ae3d, 0x27d4eb4f);
      low += l[lane]!;
      high += h[lane]! + (low > 0xffffffff ? 1 : 0);
      multiply((high << 31) | (low >>> 1), ((low << 31) | (high >>> 1)) >>> 0, 0x9e3779b1, 0x85ebca87);
      h[lane] = high;
      l[lane] = low;
    }
  }
  return h.map((each, lane) => (BigInt(each) << 32n) | BigInt(l[lane]!));
}

/** XXH64 with seed 0. */
export function xxh64(data: Uint8Array): bigint {
  const view = viewOf(data);
  const size = data.length;
  let at = size - (size % 32);
  let sum = P5;
  if (at) {
    const lanes = stripes(view);
    sum = cut([1n, 7n, 12n, 18n].reduce((total, bits, lane) => total + rotate(lanes[lane]!, bits), 0n));
    for (const each of lanes) sum = cut((sum ^ round(0n, each)) * P1 + P4);
  }
  sum += BigInt(size);
  for (; at + 8 <= size; at += 8) sum = cut(rotate(cut(sum) ^ round(0n, view.getBigUint64(at, true)), 27n) * P1 + P4);
  if (at + 4 <= size) {
    sum = cut(rotate(cut(sum) ^ cut(BigInt(view.getUint32(at, true)) * P1), 23n) * P2 + P3);
    at += 4;
  }
  for (; at < size; at++) sum = cut(rotate(cut(sum) ^ cut(BigInt(data[at]!) * P5), 11n) * P1);
  sum = cut(sum);
  sum = cut((sum ^ (sum >> 33n)) * P2);
  sum = cut((sum ^ (sum >> 29n)) * P3);
  return sum ^ (sum >> 32n);
}

/** FNV-1a-64, which one existing writer uses for the hashes of names. */
export function fnv1a64(data: Uint8Array): bigint {
  return data.reduce((sum, byte) => cut((sum ^ BigInt(byte)) * 0x100000001b3n), 0xcbf29ce484222325n);
}
