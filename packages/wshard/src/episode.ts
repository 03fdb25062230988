/** Episodes: channels by step, over one shard, over the chunks of a list, or packed from a recording. */

import { checkRange } from "./bytes.js";
import type { ChunkList } from "./chunks.js";
import { DTYPES, type DType, type TypedArray, toFloat32, typedArray } from "./dtype.js";
import { corrupt, LimitExceededError, NotFoundError } from "./errors.js";
import type { Json, JsonObject } from "./json.js";
import * as layout from "./layout.js";
import { Recording } from "./packed.js";
import { blockRows, type RowSource, textRows } from "./rows.js";
import {
  afterSlash,
  beforeSlash,
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
import type { OpenOptions, Shard } from "./shard.js";
import type { Source } from "./source.js";

/** One channel: what it holds, and its rows when they are asked for. */
export class Channel {
  /** The name of its block, which no other channel has. */
  declare readonly name: string;
  declare readonly lane: Lane;
  /** The name inside its lane. */
  declare readonly id: string;
  declare readonly source: RowSource;
  /** The channel's own times, where it does not have a row per step. */
  declare readonly clock: RowSource | undefined;
  /** What the file says about it beyond the format. */
  declare readonly about: JsonObject;
  declare readonly dtype: DType | "text" | "json";
  /** The shape of one row, without the time axis. */
  declare readonly shape: readonly number[];
  declare readonly length: number;
  declare readonly part: Part;

  constructor(
    name: string,
    lane: Lane,
    id: string,
    source: RowSource,
    clock: RowSource | undefined,
    about: JsonObject,
  ) {
    const { dtype, shape, length } = source;
    const part = lane === "signal" ? { role: "observation" } : guessPart(name, false);
    Object.assign(this, { name, lane, id, source, clock, about, dtype, shape, length, part });
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
  /** Lane by lane, each in the order of the file. By the name of the block: `signal/joint`, `action/torque`, `omen/joint/dreamer`, `reward`, `done`, `truncated`, … */
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
    const interval = 1e9 / this.timebase.tickHz;
    if (this.length > MAX_TIMES || this.length * interval >= 2 ** 63) {
      throw new LimitExceededError(`too many steps: ${this.length}`);
    }
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

/** The episode of an open shard. */
export async function episodeOf(shard: Shard): Promise<Episode> {
  if (shard.role !== layout.ROLE_EPISODE) corrupt(`a shard of role ${shard.role} is no episode`);
  const schema = await readSchema(shard);
  const { id, envId, length, timebase, metadata, models, about, chunk } = schema;
  const episode = Object.assign(new Episode(), { id, envId, length, timebase, metadata, models, about, chunk });
  await fill(episode, shard, schema);
  if (shard.has(layout.META_DIRECTORY)) {
    episode.recording = await Recording.open(shard, episode);
  }
  return episode;
}

const I64 = tensorSpec("i64");
const FLAGS = ["reward", "done", "truncated"] as const;
const LANES: readonly string[] = ["action", "omen", "uncert", "residual"];
const WIDE: Record<number, [DType, DType, bigint]> = {
  1: ["i8", "u8", 7n],
  2: ["f16", "i16", 10n],
  4: ["f32", "i32", 23n],
  8: ["f64", "i64", 52n],
};

/** Routes the blocks of one shard into the channels of one episode. */
async function fill(episode: Episode, shard: Shard, schema: EpisodeSchema): Promise<void> {
  const left = new Set(shard.names);
  const steps = schema.length;
  const metas = [layout.META_WSHARD, layout.META_EPISODE, layout.META_CHANNELS, layout.META_MODELS];
  for (const name of [...metas, ...[...schema.texts.values()].map((each) => each.ends)]) left.delete(name);

  const add = (name: string, lane: Lane, source: RowSource, clock?: RowSource, said?: JsonObject): void => {
    const about = said ?? schema.blockAbout.get(name) ?? {};
    episode.channels.set(name, new Channel(name, lane, afterSlash(name) || name, source, clock, about));
  };

  /** The rows of a block, after checking that its size is exactly what dtype, shape and length say. */
  const numbers = (name: string, spec: TensorSpec, stated?: number): RowSource => {
    left.delete(name);
    if (!shard.has(name)) corrupt("is missing", name);
    const size = shard.block(name).rawSize;
    const length = stated ?? (spec.rowBytes ? Math.floor(size / spec.rowBytes) : steps);
    if (length * spec.rowBytes !== size) {
      const shape = [length, ...spec.shape].join(",");
      corrupt(`expected ${length * spec.rowBytes} bytes of ${spec.dtype}[${shape}], got ${size}`, name);
    }
    return blockRows(shard, name, spec, length);
  };

  /** The rows of a channel: numbers, or text where the metadata says so. */
  const rowsOf = (name: string, spec: TensorSpec, length?: number): RowSource => {
    const text = schema.texts.get(name);
    if (!text) return numbers(name, spec, length);
    return textRows(text.encoding, numbers(name, spec), numbers(text.ends, I64, length), name);
  };

  /** One existing writer stores rewards and flags in whatever dtype it was given and does not say which. */
  const foreignDtype = async (name: string, plain: DType): Promise<DType> => {
    const size = shard.block(name).rawSize;
    const wide = WIDE[size / steps];
    if (size === DTYPES[plain] * steps || !wide) return plain;
    const [asFloat, asInt, fractionBits] = wide;
    const limit = 1n << fractionBits;
    let found = asFloat;
    // The bits of a small whole number are those of a denormal or an odd NaN, which nobody uses as a reward or flag;
    // of single bytes only a small number below zero is likely to have the highest bit.
    for (const value of typedArray(asInt, await shard.read(name))) {
      const bits = BigInt(value);
      if (bits <= -limit || bits >= limit) return asFloat;
      if (bits) found = asInt;
    }
    return found;
  };

  /** Rewards or flags: in their own block, or exactly as they were in a block beside it. */
  const flag = async (name: "reward" | "done" | "truncated"): Promise<RowSource | undefined> => {
    const isThere = left.delete(name);
    const exact = schema.flags.get(name);
    if (exact && !fitsOwnBlock(name, exact)) return numbers(layout.EXACT[name]!, tensorSpec(exact), steps);
    // One existing writer stores an empty block where there is no reward or done.
    if (!isThere || schema.absent.has(name) || (steps && !shard.block(name).rawSize)) return undefined;
    const plain = name === layout.REWARD ? "f32" : "u8";
    return numbers(name, tensorSpec(exact ?? (await foreignDtype(name, plain))), steps);
  };

  const listed = [...schema.channels].sort((a, b) => LANES.indexOf(a.lane) - LANES.indexOf(b.lane));
  for (const { block, clock: named, tensor, lane, about } of listed) {
    left.delete(block);
    const clock = named === undefined ? undefined : numbers(named, I64);
    const length = clock ? clock.length : steps;
    let rows: RowSource;
    if (shard.has(block)) rows = rowsOf(block, tensor, length);
    else if (length) corrupt("is missing, though it is listed", block);
    // A writer that never saw a step has nothing to store.
    else rows = { ...tensor, length, bytes: async () => new Uint8Array(0) };
    add(block, lane, rows, clock, about);
  }
  const flags = new Map<"reward" | "done" | "truncated", RowSource | undefined>();
  for (const name of FLAGS) flags.set(name, await flag(name));
  left.delete(layout.TICKS);
  if (left.has(layout.TIMESTAMPS_NS)) episode.clock = numbers(layout.TIMESTAMPS_NS, I64, steps);
  // One existing writer says that it has times and stores none: its steps have a rate.
  else (episode.timebase as { type: string }).type = "ticks";
  // Lanes, and the actions one existing writer does not list.
  for (const lane of LANES) {
    for (const name of [...left]) {
      if (beforeSlash(name) !== lane || !afterSlash(name)) continue;
      const spec = schema.lanes.get(name) ?? guessSpec(name, shard.block(name).rawSize, schema);
      if (spec) add(name, lane as Lane, rowsOf(name, spec, lane === "residual" ? undefined : steps));
    }
  }
  for (const [name, rows] of flags) if (rows) add(name, name, rows);
  for (const name of left) if (!layout.isAid(name)) episode.blocks.set(name, shard);
}

/** Whether `reward`, `done` or `truncated`, whose dtypes are fixed, can hold values of this dtype. */
export function fitsOwnBlock(name: string, dtype: DType): boolean {
  return name === layout.REWARD ? dtype === "f32" : dtype === "bool" || dtype === "u8";
}
