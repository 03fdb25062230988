/** Ranges over HTTP: how many requests, and what servers do wrong. */
import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { afterEach, expect, test } from "vitest";
import {
  ChangedError,
  fromBlob,
  fromBytes,
  fromUrl,
  NotFoundError,
  openEpisode,
  Shard,
  UnavailableError,
} from "../src/node.js";
import { encodeEpisode } from "../src/writer.js";

const TESTS = fileURLToPath(new URL("../../../tests/", import.meta.url));
const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

interface Behaviour {
  tag?: () => string;
  headers?: Record<string, string>;
  ignoresRanges?: boolean;
  shiftsRanges?: boolean;
  /** What the next requests get instead: a status, or an answer cut off in the middle. */
  failures?: (number | "cut")[];
}

async function serve(files: Record<string, Uint8Array>, how: Behaviour = {}): Promise<[string, string[]]> {
  const asked: string[] = [];
  const server = createServer((request: IncomingMessage, reply: ServerResponse) => {
    const data = files[decodeURIComponent((request.url ?? "").replace(/\?.*/, "")).slice(1)];
    const range = /bytes=(\d+)-(\d+)/.exec(request.headers.range ?? "");
    asked.push(`${request.url} ${request.headers.range}`);
    if (!data) return reply.writeHead(404).end();
    const failure = how.failures?.shift();
    if (typeof failure === "number") return reply.writeHead(failure, { "Retry-After": "0" }).end();
    if (!range || how.ignoresRanges) return reply.writeHead(200).end(data);
    const start = Number(range[1]) + (how.shiftsRanges ? 1 : 0);
    const end = Math.min(Number(range[2]) + 1, data.length);
    const headers = {
      ETag: how.tag?.() ?? '"1"',
      "Content-Range": `bytes ${start}-${end - 1}/${data.length}`,
      ...how.headers,
    };
    reply.writeHead(206, { ...headers, "Content-Length": String(end - start) });
    if (failure === "cut") {
      reply.write(data.subarray(start, start + 10));
      return setTimeout(() => reply.destroy(), 20);
    }
    return reply.end(data.subarray(start, end));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  closing.push(() => server.close());
  return [`http://127.0.0.1:${(server.address() as AddressInfo).port}/`, asked];
}

const golden = (name: string) => new Uint8Array(readFileSync(TESTS + name));

test("a small file costs one request, whatever is read of it", async () => {
  const [address, asked] = await serve({ "x.wshard": golden("golden/wshard/lanes.wshard") });
  const episode = await openEpisode(fromUrl(`${address}x.wshard`));
  for (const channel of episode.channels.values()) await channel.bytes();
  expect(asked).toEqual(["/x.wshard bytes=0-65535"]);
});

test("a window of a large raw block costs its pieces, and their list once", async () => {
  const data = Uint8Array.from({ length: 3_000_000 }, (_, i) => (i * 2654435761) >>> 13);
  const whole = await encodeEpisode({
    id: "e",
    length: 3000,
    channels: [{ name: "signal/x", dtype: "u8", shape: [1000], data }],
  });
  const [address, asked] = await serve({ x: whole });
  const episode = await openEpisode(fromUrl(`${address}x`));
  expect(asked.length).toBe(1);
  expect(Buffer.compare(await episode.channel("x").bytes(1000, 1016), data.subarray(1_000_000, 1_016_000))).toBe(0);
  expect(asked.length).toBe(3);
  expect(Buffer.compare(await episode.channel("x").bytes(1016, 1032), data.subarray(1_016_000, 1_032_000))).toBe(0);
  expect(asked.length).toBe(4);
});

test("a window of seekable frames costs their bytes only", async () => {
  const [address, asked] = await serve({ x: golden("conformance/files/good/seekable.wshard") });
  const episode = await openEpisode(fromUrl(`${address}x`, { headBytes: 1024 }), { headBytes: 1024 });
  const opened = asked.length;
  await episode.channel("x").bytes(0, 16);
  const first = asked.length - opened;
  await episode.channel("x").bytes(1500, 1516);
  expect([first, asked.length - opened - first]).toEqual([2, 1]);
});

test("a seek table before the data saves a request; one that does not fit is not used", async () => {
  const whole = await openEpisode(fromBytes(golden("conformance/files/good/seekable.wshard")));
  for (const [name, first] of Object.entries({ ahead: 1, ahead_stale: 2, ahead_short: 2 })) {
    const [address, asked] = await serve({ x: golden(`conformance/files/good/seekable_${name}.wshard`) });
    const episode = await openEpisode(fromUrl(`${address}x`, { headBytes: 2048 }), { headBytes: 2048 });
    expect(asked.length).toBe(1);
    const rows = await episode.channel("x").bytes(1500, 1516);
    expect(asked.length - 1).toBe(first);
    expect(rows).toEqual(await whole.channel("x").bytes(1500, 1516));
  }
});

test("chunks are looked for beside their list", async () => {
  const files = Object.fromEntries(
    ["manifest", "chunk_0000", "chunk_0001"].map((part) => [
      `a b/golden_dtypes_${part}.wshard`,
      golden(`golden/wshard/chunks/golden_dtypes_${part}.wshard`),
    ]),
  );
  const [address] = await serve(files);
  const episode = await openEpisode(fromUrl(`${address}a%20b/golden_dtypes_manifest.wshard?token=1`));
  expect((await episode.channel("f32").values()).length).toBe(12);
  for (const index of [0, 1]) await episode.chunks?.check(index);
});

test("a file that changes while it is read is refused", async () => {
  let number = 0;
  const [address] = await serve({ x: golden("golden/packed/recording_0.wshard") }, { tag: () => `"${number++}"` });
  const source = fromUrl(`${address}x`, { headBytes: 64 });
  await expect(Shard.open(source)).rejects.toThrow(ChangedError);
});

test("servers that do not answer with the range are refused", async () => {
  const x = golden("golden/wshard/lanes.wshard");
  for (const how of [
    { ignoresRanges: true },
    { shiftsRanges: true },
    { headers: { "Content-Encoding": "br" } },
    { headers: { "Content-Range": "odd" } },
  ]) {
    const [address] = await serve({ x }, how);
    await expect(openEpisode(fromUrl(`${address}x`))).rejects.toThrow(UnavailableError);
  }
  const [address] = await serve({});
  await expect(openEpisode(fromUrl(`${address}x`))).rejects.toThrow(NotFoundError);
  await expect(openEpisode(fromUrl("http://127.0.0.1:1/x"))).rejects.toThrow(UnavailableError);
});

test("requests that failed for a moment are repeated, others are not", async () => {
  const x = golden("golden/wshard/lanes.wshard");
  const [address, asked] = await serve({ x }, { failures: [429, 503, "cut"] });
  expect((await openEpisode(fromUrl(`${address}x`))).id).toBe("golden_lanes");
  expect(asked.length).toBe(4);
  for (const [failure, error, count] of [
    ["cut", UnavailableError, 2],
    [500, UnavailableError, 2],
    [403, UnavailableError, 1],
  ] as const) {
    const [broken, requests] = await serve({ x }, { failures: [failure, failure] });
    await expect(openEpisode(fromUrl(`${broken}x`, { retries: 1 }))).rejects.toThrow(error);
    expect(requests.length).toBe(count);
  }
});

test("a blob is read like a file", async () => {
  const episode = await openEpisode(fromBlob(new Blob([golden("golden/wshard/lanes.wshard")])));
  expect(episode.id).toBe("golden_lanes");
  expect((await episode.timesNs())[1]).toBe(33_333_333n);
});
