/** An episode in chunks as one: rows of several shards, each opened when one of its rows is asked for. */
import { joinBytes } from "./bytes.js";
import { type ChunkEntry, type ChunkListData, checkChunk, checkUri, readChunkList } from "./chunks.js";
import type { DType } from "./dtype.js";
import { Channel, Episode, type EpisodeOptions, episodeOf, type RowSource } from "./episode.js";
import { corrupt, NotFoundError } from "./errors.js";
import type { Json } from "./json.js";
import * as layout from "./layout.js";
import { Shard } from "./shard.js";
import type { Source } from "./source.js";

/** The rows of several sources one after the other; each is opened when one of its rows is asked for. */
class JoinedRows implements RowSource {
  readonly length: number;
  readonly #starts: number[] = [0];
  readonly dtype: DType | "text" | "json";
  readonly shape: readonly number[];
  texts?: (start: number, end: number) => Promise<Json[]>;

  constructor(
    first: RowSource,
    lengths: number[],
    readonly opened: (index: number) => Promise<RowSource>,
  ) {
    this.dtype = first.dtype;
    this.shape = first.shape;
    for (const each of lengths) this.#starts.push(this.#starts[this.#starts.length - 1]! + each);
    this.length = this.#starts[lengths.length]!;
    if (first.texts) {
      this.texts = async (start, end) => {
        const read = (rows: RowSource, low: number, high: number) => rows.texts?.(low, high) ?? Promise.resolve([]);
        return (await this.#each(start, end, read)).flat();
      };
    }
  }

  async bytes(start: number, end: number): Promise<Uint8Array> {
    return joinBytes(await this.#each(start, end, (rows, low, high) => rows.bytes(low, high)));
  }

  #each<T>(start: number, end: number, read: (rows: RowSource, low: number, high: number) => Promise<T>): Promise<T[]> {
    const parts: Promise<T>[] = [];
    for (let index = 0; index + 1 < this.#starts.length; index++) {
      const low = this.#starts[index]!;
      const high = this.#starts[index + 1]!;
      if (low >= end || high <= start || low === high) continue;
      parts.push(
        this.opened(index).then((rows) => {
          const isSame = rows.dtype === this.dtype && String(rows.shape) === String(this.shape);
          if (!isSame || rows.length !== high - low) {
            corrupt(`chunk ${index} does not hold the rows its list promises`);
          }
          return read(rows, Math.max(start, low) - low, Math.min(end, high) - low);
        }),
      );
    }
    return Promise.all(parts);
  }
}

/** Packed sign bits of several chunks as those of the whole: a dimension of each, one after the other. */
class JoinedBits implements RowSource {
  readonly dtype = "u8";
  readonly shape: readonly number[] = [];
  readonly length: number;
  #whole: Promise<Uint8Array> | undefined;

  constructor(
    readonly lengths: number[],
    readonly opened: (index: number) => Promise<RowSource>,
    firstBytes: number,
  ) {
    const first = lengths.find((each) => each > 0) ?? 0;
    const dims = first ? Math.floor(firstBytes / Math.ceil(first / 8)) : 0;
    this.length = dims * Math.ceil(lengths.reduce((sum, each) => sum + each, 0) / 8);
  }

  async bytes(start: number, end: number): Promise<Uint8Array> {
    this.#whole ??= this.#join();
    return (await this.#whole).subarray(start, end);
  }

  async #join(): Promise<Uint8Array> {
    const out = new Uint8Array(this.length);
    const rowBytes = Math.ceil(this.lengths.reduce((sum, each) => sum + each, 0) / 8);
    let at = 0;
    for (const [index, length] of this.lengths.entries()) {
      if (!length) continue;
      const rows = await this.opened(index);
      const data = await rows.bytes(0, rows.length);
      const size = Math.ceil(length / 8);
      if (data.length * rowBytes !== size * this.length) {
        corrupt(`${data.length} bytes are no residual of ${length} steps`);
      }
      for (let dim = 0; dim * size < data.length; dim++) {
        for (let step = 0; step < length; step++) {
          const bit = (data[dim * size + (step >> 3)]! >> (step & 7)) & 1;
          const to = at + step;
          if (bit) out[dim * rowBytes + (to >> 3)]! |= 1 << (to & 7);
        }
      }
      at += length;
    }
    return out;
  }
}

/** Open the chunks of a list as one episode. */
export async function openChunks(shard: Shard, options: EpisodeOptions): Promise<Episode> {
  const beside = options.beside ?? shard.source.beside?.bind(shard.source);
  const list = await readChunkList(shard);
  const sourceOf = (entry: ChunkEntry): Source => {
    checkUri(entry.uri);
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
  let forms: string | undefined;
  const load = async (index: number): Promise<Episode> => {
    const entry = list.chunks[index]!;
    const chunk = await episodeOf(await Shard.open(sourceOf(entry), options));
    if (chunk.length !== entry.length || (chunk.chunk && chunk.chunk.index !== entry.index)) {
      corrupt(`${entry.uri} is not chunk ${entry.index} of its list`);
    }
    const found = formsOf(chunk);
    forms ??= found;
    if (found !== forms) corrupt(`${entry.uri} has other channels than another chunk of its list`);
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

/** What must be the same in every chunk of an episode. */
function formsOf(episode: Episode): string {
  const forms = [...episode.channels.values()].map((each) => {
    const isFlag = each.name === layout.REWARD || each.name === layout.DONE || each.name === layout.TRUNCATED;
    return JSON.stringify([each.name, each.dtype, isFlag ? [] : each.shape, each.clock !== undefined]);
  });
  return [...forms.sort(), String(episode.clock !== undefined)].join();
}

async function join(whole: Episode, list: ChunkListData, opened: (index: number) => Promise<Episode>): Promise<void> {
  const first = await opened(0);
  const lengths = list.chunks.map((each) => each.length);
  whole.envId ||= first.envId;
  whole.length = list.length;
  whole.timebase = first.timebase;
  whole.metadata = first.metadata;
  whole.models = first.models;
  whole.about = first.about;
  for (const [name, shard] of first.blocks) whole.blocks.set(name, shard);
  const find = async (name: string, index: number): Promise<Channel> => {
    const found = (await opened(index)).channels.get(name);
    if (!found) corrupt(`chunk ${index} has no channel '${name}'`);
    return found;
  };
  for (const [name, channel] of first.channels) {
    const rowsOf = async (index: number) => (await find(name, index)).source;
    let source: RowSource;
    let clock: RowSource | undefined;
    if (channel.lane === "residual" && name.endsWith("/sign2nddiff")) {
      const at = Math.max(
        0,
        lengths.findIndex((each) => each > 0),
      );
      source = new JoinedBits(lengths, rowsOf, (await find(name, at)).length);
    } else if (channel.clock) {
      // A channel with its own clock has as many rows per chunk as its chunk says.
      const own = await Promise.all(lengths.map(async (_, index) => (await find(name, index)).length));
      source = new JoinedRows(channel.source, own, rowsOf);
      clock = new JoinedRows(channel.clock, own, async (index) => (await find(name, index)).clock as RowSource);
    } else source = new JoinedRows(channel.source, lengths, rowsOf);
    whole.channels.set(name, new Channel(name, channel.lane, channel.id, source, clock, channel.about));
  }
  if (first.clock) {
    whole.clock = new JoinedRows(first.clock, lengths, async (index) => {
      const { clock } = await opened(index);
      if (!clock) corrupt(`chunk ${index} has no timestamps`);
      return clock;
    });
  }
}
