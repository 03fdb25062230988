/** Episodes: channels by step, over one shard, over the chunks of a list, or packed from a recording. */

import { checkRange, utf8 } from "./bytes.js";
import type { ChunkList } from "./chunks.js";
import { DTYPES, type DType, type TypedArray, toFloat32, typedArray } from "./dtype.js";
import { about as aboutBlock, corrupt, LimitExceededError, NotFoundError } from "./errors.js";
import { type Json, type JsonObject, parseJson } from "./json.js";
import * as layout from "./layout.js";
import type { Recording } from "./packed.js";
import {
  afterSlash,
  type ChannelSpec,
  type ChunkPosition,
  type EpisodeSchema,
  guessPart,
  guessSpec,
  type Lane,
  type Part,
  readSchema,
  roundHalfEven,
  type TensorSpec,
  type Timebase,
  tensorSpec,
} from "./schema.js";
import { type OpenOptions, Shard } from "./shard.js";
import type { Source } from "./source.js";

/** Rows of numbers, or texts, where they lie. */
export interface RowSource {
  readonly dtype: DType | "text" | "json";
  /** The shape of one row. */
  readonly shape: readonly number[];
  readonly length: number;
  /** The bytes of rows [start, end): numbers in C order, texts joined as UTF-8. */
  bytes(start: number, end: number): Promise<Uint8Array>;
  /** Values [start, end) of a text or JSON channel. */
  texts?(start: number, end: number): Promise<Json[]>;
}

class BlockRows implements RowSource {
  readonly dtype: DType;
  readonly shape: readonly number[];
  constructor(
    readonly shard: Shard,
    readonly block: string,
    readonly spec: TensorSpec,
    readonly length: number,
  ) {
    this.dtype = spec.dtype;
    this.shape = spec.shape;
  }

  bytes(start: number, end: number): Promise<Uint8Array> {
    const row = this.spec.rowBytes;
    return this.shard.readRange(this.block, start * row, end * row, Math.max(1, row));
  }
}

class TextRows implements RowSource {
  readonly shape: readonly number[] = [];
  constructor(
    readonly dtype: "text" | "json",
    readonly data: RowSource,
    readonly ends: RowSource,
    readonly block: string,
  ) {}

  get length(): number {
    return this.ends.length;
  }

  async bytes(start: number, end: number): Promise<Uint8Array> {
    const bounds = await this.#bounds(start, end);
    return this.data.bytes(bounds[0]!, bounds[bounds.length - 1]!);
  }

  async texts(start: number, end: number): Promise<Json[]> {
    const bounds = await this.#bounds(start, end);
    const base = bounds[0]!;
    const data = await this.data.bytes(base, bounds[bounds.length - 1]!);
    const parts = bounds.slice(1).map((high, index) => data.subarray(bounds[index]! - base, high - base));
    return aboutBlock(this.block, () =>
      parts.map((part) => (this.dtype === "json" ? parseJson(part) : utf8(part, "holds text that is not UTF-8"))),
    );
  }

  /** Where value `start` begins, then where each value of [start, end) ends. */
  async #bounds(start: number, end: number): Promise<number[]> {
    if (start === end) return [0];
    const first = Math.max(0, start - 1);
    const known = Array.from(typedArray("i64", await this.ends.bytes(first, end)) as BigInt64Array, Number);
    const bounds = start ? known : [0, ...known];
    const whole = this.data.length;
    const last = bounds[bounds.length - 1]!;
    const isOrdered = bounds.every((each, index) => each >= (index ? bounds[index - 1]! : 0));
    if (!isOrdered || last > whole || (end === this.length && last !== whole)) {
      corrupt("the ends of its values are not those of its bytes", this.block);
    }
    return bounds;
  }
}

/** One channel: what it holds, and its rows when they are asked for. */
export class Channel {
  readonly dtype: DType | "text" | "json";
  /** The shape of one row, without the time axis. */
  readonly shape: readonly number[];
  readonly length: number;
  readonly part: Part;

  constructor(
    /** The name of its block, which no other channel has. */
    readonly name: string,
    readonly lane: Lane,
    /** The name inside its lane. */
    readonly id: string,
    readonly source: RowSource,
    /** The channel's own times, where it does not have a row per step. */
    readonly clock: RowSource | undefined,
    /** What the file says about it beyond the format. */
    readonly about: JsonObject,
  ) {
    this.dtype = source.dtype;
    this.shape = source.shape;
    this.length = source.length;
    this.part = lane === "signal" ? { role: "observation" } : guessPart(name, false);
  }

  get role(): Part["role"] {
    return this.part.role;
  }

  /** The bytes of rows [start, end): numbers in C order, texts joined as UTF-8. */
  bytes(start = 0, end = this.length): Promise<Uint8Array> {
    this.#check(start, end);
    return this.source.bytes(start, end);
  }

  /** Rows [start, end) as numbers, one after the other; f16 and bf16 as their bits. */
  async values(start = 0, end = this.length): Promise<TypedArray> {
    return typedArray(this.#number(), await this.bytes(start, end));
  }

  /** Rows [start, end) as 32-bit floats. */
  async float32(start = 0, end = this.length): Promise<Float32Array> {
    return toFloat32(this.#number(), await this.bytes(start, end));
  }

  /** Values [start, end) of a text or JSON channel. */
  async texts(start = 0, end = this.length): Promise<Json[]> {
    this.#check(start, end);
    if (!this.source.texts) throw new TypeError(`channel '${this.name}' holds ${this.dtype}, no text`);
    return this.source.texts(start, end);
  }

  /** The times of its own clock; undefined where it has a row per step. */
  async ownTimesNs(): Promise<BigInt64Array | undefined> {
    if (!this.clock) return undefined;
    return typedArray("i64", await this.clock.bytes(0, this.clock.length)) as BigInt64Array;
  }

  #number(): DType {
    if (this.dtype === "text" || this.dtype === "json") throw new TypeError(`channel '${this.name}' holds texts`);
    return this.dtype;
  }

  #check(start: number, end: number): void {
    checkRange(start, end, this.length, `rows of channel '${this.name}'`);
  }
}

/** How many times are made of a rate at once: a length that nothing in the file backs must not take memory. */
const MAX_TIMES = 2 ** 28;

export interface EpisodeOptions extends OpenOptions {
  /** Where a chunk of a chunk list lies, by its name in the list; the default is beside the list. */
  beside?: (name: string) => Source;
}

/** An episode: everything its metadata says, and its channels. */
export class Episode {
  id = "";
  envId = "";
  /** Steps. */
  length = 0;
  timebase: Timebase = { type: "ticks", tickHz: 30 };
  metadata: JsonObject = {};
  models: Json[] = [];
  /** What the file says about the episode beyond the format. */
  about: JsonObject = {};
  chunk: ChunkPosition | undefined;
  /** By the name of the block: `signal/joint`, `action/torque`, `omen/joint/dreamer`, `reward`, `done`, `truncated`, … */
  readonly channels = new Map<string, Channel>();
  /** Times of the steps, where the file has them. */
  clock: RowSource | undefined;
  /** Blocks that are no part of the format, and where they lie. */
  readonly blocks = new Map<string, Shard>();
  /** The chunks, where this is an episode in chunks. */
  chunks: ChunkList | undefined;
  /** The recording, where this is a packed one. */
  recording: Recording | undefined;

  /** The channel of this block, or of this id. */
  channel(name: string): Channel {
    const found = this.channels.get(name) ?? [...this.channels.values()].find((each) => each.id === name);
    if (!found) throw new NotFoundError(`no channel '${name}'; there are ${[...this.channels.keys()].join(", ")}`);
    return found;
  }

  /** The time of each step in nanoseconds, from the timestamps or from the rate. */
  async timesNs(): Promise<BigInt64Array> {
    if (this.clock) return typedArray("i64", await this.clock.bytes(0, this.length)) as BigInt64Array;
    if (this.length > MAX_TIMES) throw new LimitExceededError(`the times of ${this.length} steps are too many at once`);
    const interval = 1e9 / this.timebase.tickHz;
    return BigInt64Array.from({ length: this.length }, (_, step) => BigInt(roundHalfEven(step * interval)));
  }

  /** The times of the rows of a channel: its own, or those of the steps. */
  async timesOf(channel: Channel): Promise<BigInt64Array> {
    const times = (await channel.ownTimesNs()) ?? (await this.timesNs());
    if (times.length !== channel.length) {
      corrupt(`${times.length} times for ${channel.length} rows`, channel.name);
    }
    return times;
  }
}

/** Open an episode: a shard, a chunk list, or a packed recording. Only metadata is read until rows are asked for. */
export async function openEpisode(source: Source, options: EpisodeOptions = {}): Promise<Episode> {
  const shard = await Shard.open(source, options);
  // Chunk lists and recordings are loaded by those who open one: most readers never do.
  if (shard.role === layout.ROLE_CHUNK_LIST) return (await import("./joined.js")).openChunks(shard, options);
  return episodeOf(shard);
}

/** The episode of an open shard. */
export async function episodeOf(shard: Shard): Promise<Episode> {
  if (shard.role !== layout.ROLE_EPISODE) corrupt(`a shard of role ${shard.role} is no episode`);
  const schema = await readSchema(shard);
  const episode = new Episode();
  episode.id = schema.id;
  episode.envId = schema.envId;
  episode.length = schema.length;
  episode.timebase = schema.timebase;
  episode.metadata = schema.metadata;
  episode.models = schema.models;
  episode.about = schema.about;
  episode.chunk = schema.chunk;
  await new Loader(shard, schema, episode).fill();
  if (shard.has(layout.META_DIRECTORY)) {
    episode.recording = await (await import("./packed.js")).Recording.open(shard, episode);
  }
  return episode;
}

const LANES: ReadonlySet<string> = new Set(["action", "omen", "uncert", "residual"]);
const WIDE: Record<number, [DType, DType, bigint]> = {
  2: ["f16", "i16", 10n],
  4: ["f32", "i32", 23n],
  8: ["f64", "i64", 52n],
};

/** Routes the blocks of one shard into the channels of one episode. */
class Loader {
  readonly #left: Set<string>;

  constructor(
    readonly shard: Shard,
    readonly schema: EpisodeSchema,
    readonly episode: Episode,
  ) {
    this.#left = new Set(shard.names);
  }

  async fill(): Promise<void> {
    for (const name of [layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS]) {
      this.#left.delete(name);
    }
    for (const text of this.schema.texts.values()) this.#left.delete(text.ends);
    for (const spec of this.schema.channels) this.#addChannel(spec);
    const flags = [
      await this.#flag(layout.REWARD, "f32"),
      await this.#flag(layout.DONE, "u8"),
      await this.#flag(layout.TRUNCATED, "u8"),
    ];
    this.#left.delete(layout.TICKS);
    if (this.#left.delete(layout.TIMESTAMPS_NS)) {
      this.episode.clock = this.#rows(layout.TIMESTAMPS_NS, tensorSpec("i64"), this.schema.length);
    }
    for (const name of [...this.#left]) if (!layout.isAid(name)) this.#addUnlisted(name);
    for (const flag of flags) if (flag) this.#add(flag);
    for (const name of this.#left) {
      if (!layout.isAid(name)) this.episode.blocks.set(name, this.shard);
    }
  }

  #add(channel: Channel): void {
    this.episode.channels.set(channel.name, channel);
  }

  #addChannel(spec: ChannelSpec): void {
    this.#left.delete(spec.block);
    let clock: RowSource | undefined;
    if (spec.clock !== undefined) {
      this.#left.delete(spec.clock);
      clock = this.#rows(spec.clock, tensorSpec("i64"), undefined);
    }
    const length = clock ? clock.length : this.schema.length;
    let rows: RowSource;
    if (this.shard.has(spec.block)) rows = this.#rows(spec.block, spec.tensor, length);
    else if (length) corrupt(`is missing, though channel '${spec.id}' is listed`, spec.block);
    // A writer that never saw a step has nothing to store.
    else rows = { ...spec.tensor, length: 0, bytes: async () => new Uint8Array(0) };
    this.#add(new Channel(spec.block, spec.lane, afterSlash(spec.block), rows, clock, spec.about));
  }

  /** Lanes, and the actions one existing writer does not list. */
  #addUnlisted(name: string): void {
    const lane = name.split("/", 1)[0]!;
    const rest = afterSlash(name);
    const spec = this.schema.lanes.get(name) ?? guessSpec(name, this.shard.block(name).rawSize, this.schema);
    if (!rest || !spec || !LANES.has(lane)) return;
    this.#left.delete(name);
    const rows = this.#rows(name, spec, lane === "residual" ? undefined : this.schema.length);
    this.#add(new Channel(name, lane as Lane, rest, rows, undefined, this.schema.blockAbout.get(name) ?? {}));
  }

  /** Rewards or flags: in their own block, or exactly as they were in a block beside it. */
  async #flag(name: "reward" | "done" | "truncated", plain: DType): Promise<Channel | undefined> {
    const isThere = this.#left.delete(name);
    const exact = this.schema.flags.get(name);
    const beside = layout.EXACT[name]!;
    let rows: RowSource;
    if (exact && !fitsOwnBlock(name, exact)) {
      this.#left.delete(beside);
      rows = this.#rows(beside, tensorSpec(exact), this.schema.length);
    } else {
      if (!isThere || this.schema.absent.has(name)) return undefined;
      // One existing writer stores an empty block where there is no reward or done.
      if (this.schema.length && !this.shard.block(name).rawSize) return undefined;
      rows = this.#rows(name, tensorSpec(exact ?? (await this.#foreignDtype(name, plain))), this.schema.length);
    }
    return new Channel(name, name, name, rows, undefined, this.schema.blockAbout.get(name) ?? {});
  }

  /** One existing writer stores rewards and flags in whatever dtype it was given and does not say which. */
  async #foreignDtype(name: string, plain: DType): Promise<DType> {
    const size = this.shard.block(name).rawSize;
    const length = this.schema.length;
    const wide = WIDE[size / length];
    if (size === DTYPES[plain] * length || !length || !wide) return plain;
    const [asFloat, asInt, fractionBits] = wide;
    const limit = 1n << fractionBits;
    let isAny = false;
    // The bits of a small whole number are those of a denormal or an odd NaN, which nobody uses as a reward or flag.
    for (const value of typedArray(asInt, await this.shard.read(name))) {
      const bits = BigInt(value);
      if (bits <= -limit || bits >= limit) return asFloat;
      isAny ||= bits !== 0n;
    }
    return isAny ? asInt : asFloat;
  }

  #rows(name: string, spec: TensorSpec, length: number | undefined): RowSource {
    const text = this.schema.texts.get(name);
    if (!text) return this.#numbers(name, spec, length);
    const ends = this.#numbers(text.ends, tensorSpec("i64"), length);
    return new TextRows(text.encoding, this.#numbers(name, spec, undefined), ends, name);
  }

  /** The rows of a block, after checking that its size is exactly what dtype, shape and length say. */
  #numbers(name: string, spec: TensorSpec, stated: number | undefined): RowSource {
    if (!this.shard.has(name)) corrupt("is missing", name);
    const size = this.shard.block(name).rawSize;
    const length = stated ?? (spec.rowBytes ? Math.floor(size / spec.rowBytes) : this.schema.length);
    if (length * spec.rowBytes !== size) {
      const shape = [length, ...spec.shape].join(",");
      corrupt(`has ${size} bytes, ${spec.dtype}[${shape}] needs ${length * spec.rowBytes}`, name);
    }
    return new BlockRows(this.shard, name, spec, length);
  }
}

/** Whether `reward`, `done` or `truncated`, whose dtypes are fixed, can hold values of this dtype. */
export function fitsOwnBlock(name: string, dtype: DType): boolean {
  return name === layout.REWARD ? dtype === "f32" : dtype === "bool" || dtype === "u8";
}
