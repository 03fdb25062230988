import { expect, test } from "vitest";
import { crc32c, fnv1a64, xxh64 } from "../src/checksum.js";

const bytes = (text: string) => new TextEncoder().encode(text);
const hex = (hash: bigint) => hash.toString(16).padStart(16, "0");

/** XXH64 as its definition says it, in BigInt. */
function slowXxh64(data: Uint8Array): string {
  const mask = (1n << 64n) - 1n;
  const p = [
    0x9e3779b185ebca87n,
    0xc2b2ae3d27d4eb4fn,
    0x165667b19e3779f9n,
    0x85ebca77c2b2ae63n,
    0x27d4eb2f165667c5n,
  ] as const;
  const turn = (x: bigint, n: bigint) => ((x << n) | (x >> (64n - n))) & mask;
  const round = (lane: bigint, input: bigint) => (turn((lane + input * p[1]) & mask, 31n) * p[0]) & mask;
  const number = (at: number, size: number) => {
    let out = 0n;
    for (let i = size - 1; i >= 0; i--) out = (out << 8n) | BigInt(data[at + i]!);
    return out;
  };
  let at = 0;
  let hash: bigint;
  if (data.length >= 32) {
    const lanes = [(p[0] + p[1]) & mask, p[1], 0n, -p[0] & mask];
    for (; at + 32 <= data.length; at += 32) {
      for (let i = 0; i < 4; i++) lanes[i] = round(lanes[i]!, number(at + 8 * i, 8));
    }
    hash = [1n, 7n, 12n, 18n].reduce((sum, n, i) => (sum + turn(lanes[i]!, n)) & mask, 0n);
    for (const lane of lanes) hash = ((hash ^ round(0n, lane)) * p[0] + p[3]) & mask;
  } else hash = p[4];
  hash = (hash + BigInt(data.length)) & mask;
  for (; at + 8 <= data.length; at += 8) hash = (turn(hash ^ round(0n, number(at, 8)), 27n) * p[0] + p[3]) & mask;
  if (at + 4 <= data.length) {
    hash = (turn(hash ^ ((number(at, 4) * p[0]) & mask), 23n) * p[1] + p[2]) & mask;
    at += 4;
  }
  for (; at < data.length; at++) hash = (turn(hash ^ ((BigInt(data[at]!) * p[4]) & mask), 11n) * p[0]) & mask;
  hash = ((hash ^ (hash >> 33n)) * p[1]) & mask;
  hash = ((hash ^ (hash >> 29n)) * p[2]) & mask;
  return (hash ^ (hash >> 32n)).toString(16).padStart(16, "0");
}

test("published values", () => {
  expect(crc32c(bytes("123456789"))).toBe(0xe3069283);
  expect(hex(xxh64(bytes("")))).toBe("ef46db3751d8e999");
  expect(hex(xxh64(bytes("a")))).toBe("d24ec4f1a98c6e5b");
  expect(hex(fnv1a64(bytes("a")))).toBe("af63dc4c8601ec8c");
});

test("every length agrees with the definition", () => {
  for (let size = 0; size < 150; size++) {
    const data = Uint8Array.from({ length: size }, (_, i) => (i * 197 + size * 31) ^ (i >> 2));
    expect(hex(xxh64(data))).toBe(slowXxh64(data));
  }
});

test("a checksum goes on where another ended", () => {
  const data = Uint8Array.from({ length: 100 }, (_, i) => i * 7);
  for (let cut = 0; cut <= 100; cut++) {
    expect(crc32c(data.subarray(cut), crc32c(data.subarray(0, cut)))).toBe(crc32c(data));
  }
});
