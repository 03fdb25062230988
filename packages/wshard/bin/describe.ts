/** A file in words: what `wshard-dump` prints. */
import { createHash } from "node:crypto";
import {
  type Channel,
  type Episode,
  type Json,
  openEpisode,
  type Signal,
  type Source,
  toFloat32,
} from "../src/node.js";

type Value = Json | undefined | Value[] | { [key: string]: Value };

const FIRST = 8;

function sha256(data: Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

function bytesOf(times: BigInt64Array): Uint8Array {
  return new Uint8Array(times.buffer, times.byteOffset, times.byteLength);
}

/** Rows from the middle, as a reader asks for them who wants no more. */
function windowOf(length: number): [number, number] {
  const start = Math.floor(length / 3);
  return [start, Math.min(length, start + Math.ceil(length / 3))];
}

function plain(value: number | bigint): Json {
  if (typeof value === "bigint") return value;
  return Number.isFinite(value) ? value : String(value);
}

async function first(channel: Channel): Promise<Json[]> {
  if (channel.dtype === "text" || channel.dtype === "json") return channel.texts(0, Math.min(FIRST, channel.length));
  const isHalf = channel.dtype === "f16" || channel.dtype === "bf16";
  const data = await channel.bytes();
  const values = isHalf ? toFloat32(channel.dtype, data) : await channel.values();
  return Array.from(values.subarray(0, FIRST) as Iterable<number | bigint>, plain);
}

async function describeChannel(channel: Channel, fresh: Episode, isFull: boolean): Promise<Value> {
  const { name, id, lane, role, dtype, length, shape } = channel;
  const [start, end] = windowOf(length);
  // The window first, and from a reader that has seen nothing else of the file.
  const window = isFull ? await fresh.channel(name).bytes(start, end) : undefined;
  const data = await channel.bytes();
  if (channel.dtype === "text" || channel.dtype === "json") await channel.texts();
  const own = await channel.ownTimesNs();
  return {
    name,
    id,
    lane,
    role,
    of: channel.part.of ?? null,
    model: channel.part.model ?? null,
    dtype,
    shape: [length, ...shape],
    sha256: sha256(data),
    clock: own ? { length: own.length, sha256: sha256(bytesOf(own)) } : null,
    ...(window && {
      window: { start, end, sha256: sha256(window) },
      first: await first(channel),
      about: channel.about,
    }),
  };
}

async function describeSignal(signal: Signal): Promise<Value> {
  const { name, kind, dtype, shape, role, part } = signal;
  const common = { name, kind, dtype, role, of: part.of ?? null, model: part.model ?? null };
  if (signal.video) {
    const [video, frames] = [await signal.videoBytes(), await signal.frameIndexBytes()];
    return { ...common, video: sha256(video), frames: sha256(frames) };
  }
  if (signal.table !== undefined) return { ...common, table: sha256(await signal.tableBytes()) };
  const offsets = await signal.offsets();
  return {
    ...common,
    shape: [signal.length ?? 0, ...shape],
    ...(offsets && { offsets: sha256(bytesOf(BigInt64Array.from(offsets, BigInt))) }),
    sha256: sha256(await signal.bytes()),
    times: sha256(bytesOf(await signal.timesNs())),
  };
}

/** Everything a file says and holds; `isFull` adds metadata, first values and a window of each channel. */
export async function describe(open: () => Source, isFull: boolean): Promise<Value> {
  const episode = await openEpisode(open());
  const fresh = isFull ? await openEpisode(open()) : episode;
  const { chunks, recording } = episode;
  for (const each of chunks?.chunks ?? []) await chunks?.check(each.index);
  const channels: Value[] = [];
  for (const channel of episode.channels.values()) channels.push(await describeChannel(channel, fresh, isFull));
  const found: { [key: string]: Value } = {
    kind: chunks ? "chunks" : recording ? "packed" : "episode",
    id: episode.id,
    env_id: episode.envId,
    length: episode.length,
    channels,
  };
  if (recording) {
    found["signals"] = await Promise.all([...recording.signals.values()].map(describeSignal));
  }
  if (!isFull) return found;
  const chunk = episode.chunk;
  const blocks: Value[] = [];
  for (const [name, shard] of episode.blocks) blocks.push({ name, sha256: sha256(await shard.read(name)) });
  return {
    ...found,
    timebase: { type: episode.timebase.type, tick_hz: episode.timebase.tickHz },
    times: sha256(bytesOf(await episode.timesNs())),
    metadata: episode.metadata,
    models: episode.models,
    about: episode.about,
    chunk: chunk
      ? { index: chunk.index, total: chunk.total ?? null, steps: chunk.steps ? [...chunk.steps] : null }
      : null,
    blocks,
    ...(recording && { static: recording.items, meta: recording.meta, steps: recording.steps ?? null }),
  };
}

/** JSON text; whole numbers keep all their digits. `line` is the line break with its indent, or nothing. */
export function stringify(value: Value, line = ""): string {
  if (typeof value === "bigint") return String(value);
  if (typeof value !== "object" || value === null) return JSON.stringify(value) ?? "null";
  const inner = line && `${line}  `;
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((each) => stringify(each, inner))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}:${line && " "}${stringify(each, inner)}`);
  const [left, right] = isList ? ["[", "]"] : ["{", "}"];
  return parts.length ? left + inner + parts.join(`,${inner}`) + line + right : left + right;
}
