/** An episode in chunks as one: rows of several shards, each opened when one of its rows is asked for. */
import { sum } from "./bytes.js";
import { type ChunkEntry, type ChunkListData, checkChunk, readChunkList } from "./chunks.js";
import { Channel, Episode, type EpisodeOptions, episodeOf } from "./episode.js";
import { corrupt, NotFoundError } from "./errors.js";
import { isObject } from "./json.js";
import * as layout from "./layout.js";
import { joinedRows, type RowSource } from "./rows.js";
import { Shard } from "./shard.js";
import type { Source } from "./source.js";

/** Packed sign bits of several chunks as those of the whole: a dimension of each, one after the other. */
async function joinedBits(lengths: number[], opened: (index: number) => Promise<RowSource>): Promise<RowSource> {
  const first = lengths.findIndex(Boolean);
  const rowBytes = Math.ceil(sum(lengths) / 8);
  const dims = first < 0 ? 0 : Math.floor((await opened(first)).length / Math.ceil(lengths[first]! / 8));
  let whole: Promise<Uint8Array> | undefined;
  const join = async (): Promise<Uint8Array> => {
    const out = new Uint8Array(dims * rowBytes);
    let at = 0;
    for (const [index, length] of lengths.entries()) {
      if (!length) continue;
      const rows = await opened(index);
      const data = await rows.bytes(0, rows.length);
      const size = Math.ceil(length / 8);
      if (data.length !== size * dims) corrupt(`expected ${size * dims} bytes, got ${data.length}`);
      for (let dim = 0; dim < dims; dim++) {
        for (let step = 0; step < length; step++) {
          const bit = (data[dim * size + (step >> 3)]! >> (step & 7)) & 1;
          const to = at + step;
          out[dim * rowBytes + (to >> 3)]! |= bit << (to & 7);
        }
      }
      at += length;
    }
    return out;
  };
  const bytes = async (start: number, end: number) => {
    whole ??= join();
    return (await whole).subarray(start, end);
  };
  return { dtype: "u8", shape: [], length: dims * rowBytes, bytes };
}

/** Open the chunks of a list as one episode. */
async function openChunks(shard: Shard, options: EpisodeOptions): Promise<Episode> {
  const beside = options.beside ?? shard.source.beside?.bind(shard.source);
  const list = await readChunkList(shard);
  const sourceOf = (entry: ChunkEntry): Source => {
    if (!beside)
      throw new NotFoundError(`chunk ${entry.index} is in another file`, undefined, "Say where with `beside`.");
    return beside(entry.uri);
  };
  const episode = new Episode();
  episode.chunks = { ...list, check: async (index) => checkChunk(list.chunks[index], sourceOf) };
  episode.id = list.episodeId;
  episode.envId = list.envId;
  if (!list.chunks.length) return episode;
  const opening = new Map<number, Promise<Episode>>();
  let profile: string | undefined;
  const load = async (index: number): Promise<Episode> => {
    const entry = list.chunks[index]!;
    const chunk = await episodeOf(await Shard.open(sourceOf(entry), options));
    if (chunk.length !== entry.length || (chunk.chunk && chunk.chunk.index !== entry.index)) {
      corrupt(`${entry.uri} is not chunk ${entry.index}`);
    }
    const found = profileOf(chunk);
    profile ??= found;
    if (found !== profile) corrupt(`${entry.uri} does not continue the other chunks`);
    return chunk;
  };
  const opened = (index: number): Promise<Episode> => {
    const found = opening.get(index) ?? load(index);
    opening.set(index, found);
    found.catch(() => opening.delete(index));
    return found;
  };
  await join(episode, list, opened);
  return episode;
}

/** Everything that must be the same in all chunks of an episode, as one text. */
function profileOf(episode: Episode): string {
  const { id, envId, clock, timebase, metadata, models, about } = episode;
  const channels = [...episode.channels.values()].map((each) =>
    JSON.stringify([each.name, each.dtype, each.shape, each.clock !== undefined]),
  );
  const rate = clock ? "times" : timebase.tickHz;
  return JSON.stringify([id, envId, rate, channels.sort(), metadata, models, about], (_, value) =>
    typeof value === "bigint" ? `${value}n` : isObject(value) ? Object.entries(value).sort() : value,
  );
}

/** Packed bits: `<channel>/sign2nddiff`, or `/<model>` behind that, in single bytes. */
const SIGN_BITS = /^residual\/.+\/sign2nddiff(\/[^/]+)?$/;

async function join(whole: Episode, list: ChunkListData, opened: (index: number) => Promise<Episode>): Promise<void> {
  const first = await opened(0);
  const lengths = list.chunks.map((each) => each.length);
  const { timebase, metadata, models, about } = first;
  Object.assign(whole, { length: list.length, timebase, metadata, models, about });
  whole.envId ||= first.envId;
  for (const [name, shard] of first.blocks) whole.blocks.set(name, shard);
  // Every chunk that is opened has the same channels and clocks as the first.
  const find = async (name: string, index: number): Promise<Channel> => (await opened(index)).channels.get(name)!;
  for (const [name, channel] of first.channels) {
    const rowsOf = async (index: number) => (await find(name, index)).source;
    let source: RowSource;
    let clock: RowSource | undefined;
    if (channel.dtype === "u8" && !channel.shape.length && SIGN_BITS.test(name)) {
      source = await joinedBits(lengths, rowsOf);
    } else if (channel.clock) {
      // A channel with its own clock has as many rows per chunk as its chunk says.
      const own = await Promise.all(lengths.map(async (_, index) => (await find(name, index)).length));
      source = joinedRows(channel.source, own, rowsOf);
      clock = joinedRows(channel.clock, own, async (index) => (await find(name, index)).clock!);
    } else source = joinedRows(channel.source, lengths, rowsOf);
    whole.channels.set(name, new Channel(name, channel.lane, channel.id, source, clock, channel.about));
  }
  if (first.clock) {
    whole.clock = joinedRows(first.clock, lengths, async (index) => (await opened(index)).clock!);
  }
}

/** Open an episode: a shard, a chunk list, or a packed recording. Only metadata is read until rows are asked for. */
export async function openEpisode(source: Source, options: EpisodeOptions = {}): Promise<Episode> {
  const shard = await Shard.open(source, options);
  return shard.role === layout.ROLE_CHUNK_LIST ? openChunks(shard, options) : episodeOf(shard);
}
