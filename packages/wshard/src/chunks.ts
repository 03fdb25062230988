/** Chunk lists: a long episode as several shards, described by one small shard of role 4. */
import { about, ChecksumError, corrupt, WShardError } from "./errors.js";
import { isFraction, isObject, type Json, type JsonObject } from "./json.js";
import * as layout from "./layout.js";
import { count, text } from "./schema.js";
import type { Shard } from "./shard.js";
import type { Source } from "./source.js";

/** One chunk; `steps` is half-open. */
export interface ChunkEntry {
  readonly index: number;
  readonly uri: string;
  readonly sha256: string;
  readonly steps: readonly [number, number] | undefined;
  readonly length: number;
}

/** What a chunk list says. */
export interface ChunkListData {
  readonly episodeId: string;
  readonly envId: string;
  /** Steps of all chunks. */
  readonly length: number;
  readonly chunks: readonly ChunkEntry[];
}

export interface ChunkList extends ChunkListData {
  /** Hold the file of a chunk against its SHA-256; reads all of it. */
  readonly check: (index: number) => Promise<void>;
}

const MAX_CHUNKS = 1_000_000;

/** Read a chunk list and check that its chunks follow each other without a gap. */
export async function readChunkList(shard: Shard): Promise<ChunkListData> {
  if (!shard.has(layout.META_CHUNK_LIST)) corrupt("not a chunk list");
  const meta = await shard.readJson(layout.META_CHUNK_LIST);
  return about(layout.META_CHUNK_LIST, () => listOf(meta));
}

function listOf(meta: JsonObject): ChunkListData {
  const stated: Json = meta["chunks"] ?? [];
  if (!Array.isArray(stated) || !stated.every(isObject)) corrupt("chunks is no list of objects");
  if (stated.length > MAX_CHUNKS) corrupt(`${stated.length} chunks are too many`);
  const chunks = (stated as JsonObject[]).map(entryOf).sort((a, b) => a.index - b.index);
  const list = {
    episodeId: text(meta, "episode_id"),
    envId: text(meta, "env_id"),
    length: count(meta, "total_timesteps"),
    chunks,
  };
  for (const each of chunks) checkUri(each.uri);
  let position = 0;
  for (const [index, each] of chunks.entries()) {
    if (each.index !== index) corrupt(`chunk indices are not 0 to ${chunks.length - 1}`);
    const expected = `${position},${position + each.length}`;
    if (each.steps && String(each.steps) !== expected) {
      corrupt(`steps of chunk ${index}: expected [${expected}), got [${each.steps})`);
    }
    position += each.length;
  }
  if (position !== list.length) corrupt(`total_timesteps: expected ${position}, got ${list.length}`);
  return list;
}

function entryOf(each: JsonObject): ChunkEntry {
  const sha256 = text(each, "sha256");
  if (!/^[0-9a-f]{64}$/.test(sha256)) corrupt(`'${sha256.slice(0, 70)}' is no SHA-256`);
  const range = each["timestep_range"] ?? undefined;
  let steps: [number, number] | undefined;
  if (range !== undefined) {
    const isPair = Array.isArray(range) && range.length === 2 && range.every((value) => Number.isInteger(value));
    if (!isPair || isFraction(range, 0) || isFraction(range, 1)) corrupt("timestep_range is not a pair");
    const [first, last] = range as [number, number];
    steps = [first, last + 1]; // chunk lists store the last step
  }
  return { index: count(each, "chunk_index"), uri: text(each, "uri"), sha256, steps, length: count(each, "length_T") };
}

/** A chunk's address stays inside the folder of its chunk list. */
export function checkUri(uri: string): void {
  const parts = uri.replaceAll("\\", "/").split("/");
  const isOutside = parts.some((part) => part === "" || part === "." || part === "..");
  if (!uri || uri.includes("\0") || parts[0]!.includes(":") || isOutside) {
    corrupt(`chunk '${uri}' is outside the folder`);
  }
}

/** Hold a chunk against the SHA-256 of the list. */
export async function checkChunk(entry: ChunkEntry | undefined, open: (entry: ChunkEntry) => Source): Promise<void> {
  if (!entry) throw new RangeError("no such chunk");
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new WShardError("SHA-256 needs a page served over https");
  const source = open(entry);
  const data = await source.read(0, await source.size());
  const digest = new Uint8Array(await subtle.digest("SHA-256", data as Uint8Array<ArrayBuffer>));
  const found = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== entry.sha256) throw new ChecksumError(`SHA-256 mismatch of chunk ${entry.index}`);
}
