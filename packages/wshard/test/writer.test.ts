import { expect, test } from "vitest";
import { decode } from "../src/codec.js";
import { type JsonObject, parseJson } from "../src/json.js";
import { type Channel, fromBytes, openEpisode, SchemaMismatchError } from "../src/node.js";
import { type ChannelData, dumpJson, encodeEpisode, encodeZstd, episodeData } from "../src/writer.js";

/** The same numbers in every run. */
function dice(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Whether two runs of bytes are the same; `toEqual` takes minutes for large ones. */
const same = (a: Uint8Array, b: Uint8Array) => Buffer.compare(a, b) === 0;

test("whatever is compressed comes back", () => {
  const random = dice(7);
  for (let round = 0; round < 60; round++) {
    const data = new Uint8Array(Math.floor(random() ** 3 * 300_000));
    const kinds = 1 + Math.floor(random() * 255);
    const period = 1 + Math.floor(random() * 5000);
    for (let i = 0; i < data.length; i++)
      data[i] = i >= period && random() < 0.9 ? data[i - period]! : random() * kinds;
    expect(same(decode("zstd", encodeZstd(data), data.length), data)).toBe(true);
  }
  for (const size of [0, 1, 3, 4, 5, 131_072, 131_073, 400_000]) {
    const zeros = new Uint8Array(size);
    expect(same(decode("zstd", encodeZstd(zeros), size), zeros)).toBe(true);
  }
});

async function written(channels: ChannelData[], length: number, compression: "none" | "zstd" = "none") {
  return openEpisode(fromBytes(await encodeEpisode({ id: "e", length, channels }, { compression })));
}

test.each(["none", "zstd"] as const)("every window is the same slice (%s)", async (compression) => {
  const data = Float32Array.from({ length: 700 * 600 }, (_, i) => Math.floor(i / 100));
  const bytes = new Uint8Array(data.buffer);
  const random = dice(3);
  const episode = await written([{ name: "signal/x", dtype: "f32", shape: [600], data }], 700, compression);
  for (let round = 0; round < 30; round++) {
    const [a, b] = [Math.floor(random() * 701), Math.floor(random() * 701)].sort((x, y) => x - y) as [number, number];
    expect(same(await episode.channel("x").bytes(a, b), bytes.subarray(a * 2400, b * 2400))).toBe(true);
  }
});

test("numbers in metadata are copied as they are", async () => {
  const text =
    '{"a":1152921504606846976.0,"b":1152921504606846976,"c":10.0,"d":-0.0,"e":1e300,"f":[2.0,9007199254740993]}';
  const metadata = parseJson(new TextEncoder().encode(text)) as JsonObject;
  const copied = await openEpisode(fromBytes(await encodeEpisode({ id: "e", length: 0, channels: [], metadata })));
  expect(dumpJson(copied.metadata)).toBe(
    '{"a":1152921504606847000.0,"b":1152921504606846976,"c":10.0,"d":-0.0,"e":1e+300,"f":[2.0,9007199254740993]}',
  );
  expect(copied.metadata).toEqual(metadata);
});

test("texts, JSON values, clocks and flags come back", async () => {
  const episode = await written(
    [
      { name: "signal/said", dtype: "text", data: ["a", "", "ü"] },
      { name: "action/call", dtype: "json", data: [{ n: 2n ** 60n }, null, [1.5]] },
      {
        name: "signal/slow",
        dtype: "u16",
        data: Uint16Array.of(7, 8),
        timesNs: BigInt64Array.of(5n, 9n),
        about: { unit: "m" },
      },
      { name: "reward", dtype: "f64", data: Float64Array.of(0.1, 0.2, 0.3) },
      { name: "truncated", dtype: "bool", data: Uint8Array.of(0, 0, 1) },
    ],
    3,
  );
  expect(await episode.channel("said").texts()).toEqual(["a", "", "ü"]);
  expect(await episode.channel("call").texts(0, 2)).toEqual([{ n: 2n ** 60n }, null]);
  const slow = episode.channel("slow") as Channel;
  expect([await slow.values(), await slow.ownTimesNs(), slow.about]).toEqual([
    Uint16Array.of(7, 8),
    BigInt64Array.of(5n, 9n),
    { unit: "m" },
  ]);
  expect(await episode.channel("reward").values()).toEqual(Float64Array.of(0.1, 0.2, 0.3));
  expect([...episode.channels.keys()]).not.toContain("done");
  expect(episode.channel("truncated").dtype).toBe("bool");
});

test("what no reader would give back is refused", async () => {
  const x = { name: "signal/x", dtype: "u8", data: Uint8Array.of(1, 2) } as const;
  const wrong: [ChannelData[], RegExp][] = [
    [[{ ...x, name: "other/x" }], /no lane/],
    [[{ ...x, name: "signal/../x" }], /no channel id/],
    [[{ ...x, data: Uint8Array.of(1) }], /bytes/],
    [[x, x], /two blocks|listed twice/],
    [[{ ...x, about: { dtype: "f32" } }], /says itself/],
    [[{ ...x, about: { a: Number.NaN } }], /not JSON/],
    [[{ ...x, timesNs: BigInt64Array.of(2n, 2n) }], /not later/],
    [[{ name: "done", dtype: "u8", data: Uint8Array.of(0, 2) }], /other than 0 and 1/],
    [[{ name: "signal/x", dtype: "text", data: ["a"] }], /values/],
    [[{ ...x, dtype: "f33" as "f32" }], /./],
  ];
  for (const [channels, message] of wrong) {
    await expect(written(channels, 2), String(message)).rejects.toThrow(SchemaMismatchError);
    await expect(written(channels, 2)).rejects.toThrow(message);
  }
  const late = { id: "e", length: 2, timesNs: BigInt64Array.of(2n, 1n), channels: [x] };
  await expect(encodeEpisode(late)).rejects.toThrow(/not later/);
  const stored = await openEpisode(fromBytes(await encodeEpisode({ ...late, asStored: true })));
  expect((await episodeData(stored)).timesNs).toEqual(late.timesNs);
});
