/** Write an episode as one shard, so that every reader of the format gives it back. */

import { joinBytes } from "./bytes.js";
import { crc32c, xxh64 } from "./checksum.js";
import { DTYPES, type DType, isDType, type TypedArray, toFloat32 } from "./dtype.js";
import { type Channel, type Episode, episodeOf, fitsOwnBlock } from "./episode.js";
import { FormatError, SchemaMismatchError } from "./errors.js";
import { isFraction, type Json, type JsonObject } from "./json.js";
import * as layout from "./layout.js";
import { afterSlash, CHANNEL_KEYS, type ChunkPosition, EPISODE_KEYS, roundHalfEven, type Timebase } from "./schema.js";
import { Shard } from "./shard.js";
import { fromBytes } from "./source.js";
import { checkedName, tableCrc32c } from "./table.js";
import { encodeZstd } from "./zstd.js";

export { encodeZstd };

/** Texts or JSON values as they are stored: all of them joined, and where each ends. */
export interface StoredTexts {
  bytes: Uint8Array;
  ends: readonly number[];
}

export interface ChannelData {
  /** The name of its block: `signal/joint`, `action/torque`, `omen/joint/model`, `reward`, `done`, `truncated`, … */
  name: string;
  dtype: DType | "text" | "json";
  /** The shape of one row; empty for one value per row. */
  shape?: readonly number[];
  /** All rows: numbers as their bytes or an array of them, texts as strings, JSON values as they are. */
  data: TypedArray | Uint8Array | readonly Json[] | StoredTexts;
  /** The channel's own times, where it does not have a row per step. */
  timesNs?: BigInt64Array;
  about?: JsonObject;
}

export interface EpisodeData {
  id: string;
  envId?: string;
  /** Steps. */
  length: number;
  timebase?: Timebase;
  /** The time of each step. */
  timesNs?: BigInt64Array;
  metadata?: JsonObject;
  models?: Json[];
  about?: JsonObject;
  chunk?: ChunkPosition | undefined;
  channels: readonly ChannelData[];
  /** Blocks that are no part of the format. */
  blocks?: ReadonlyMap<string, Uint8Array>;
  /** Times and flags are those of a file and written as they are; new times increase, new flags are 0 or 1. */
  asStored?: boolean;
}

export interface WriteOptions {
  compression?: "none" | "zstd";
}

interface Tensor {
  name: string;
  raw: Uint8Array;
  rowBytes: number;
  contentType: number;
  isMeta?: boolean;
}

const FLAGS = [layout.REWARD, layout.DONE, layout.TRUNCATED];
const TEXT_ENCODER = new TextEncoder();
// biome-ignore lint/suspicious/noControlCharactersInRegex: exactly these are refused
const CONTROL = /[\u0000-\u001f\u007f-\u009f]|\p{Surrogate}/u;

function wrong(fact: string, block?: string): never {
  throw new SchemaMismatchError(fact, block);
}

/** The bytes of a file that holds this episode. What a reader would refuse is an error here. */
export async function encodeEpisode(episode: EpisodeData, options: WriteOptions = {}): Promise<Uint8Array> {
  const data = encodeShard(new Plan(episode).tensors(), options);
  try {
    await episodeOf(await Shard.open(fromBytes(data)));
  } catch (error) {
    if (error instanceof FormatError) wrong(`would be refused by every reader: ${error.message}`);
    throw error;
  }
  return data;
}

/** Everything of an open episode, read into memory, as something to write. */
export async function episodeData(episode: Episode): Promise<EpisodeData> {
  const blocks = new Map<string, Uint8Array>();
  for (const [name, shard] of episode.blocks) blocks.set(name, await shard.read(name));
  return {
    id: episode.id,
    envId: episode.envId,
    length: episode.length,
    timebase: episode.timebase,
    ...(episode.clock && { timesNs: await episode.timesNs() }),
    metadata: episode.metadata,
    models: episode.models,
    about: episode.about,
    chunk: episode.chunk,
    channels: await Promise.all([...episode.channels.values()].map(channelData)),
    blocks,
    asStored: true,
  };
}

async function channelData(channel: Channel): Promise<ChannelData> {
  const { name, dtype, shape, about } = channel;
  const timesNs = await channel.ownTimesNs();
  let data: ChannelData["data"] = await channel.bytes();
  if (!isDType(dtype)) {
    const ends: number[] = [];
    for (let row = 0; row < channel.length; row++) {
      ends.push((ends[row - 1] ?? 0) + (await channel.bytes(row, row + 1)).length);
    }
    data = { bytes: data, ends };
  }
  return { name, dtype, shape, data, about, ...(timesNs && { timesNs }) };
}

/** One episode on its way into blocks. */
class Plan {
  readonly #flags = new Map<string, ChannelData>();
  readonly #rows: ChannelData[] = [];
  readonly #lanes: ChannelData[] = [];

  constructor(readonly episode: EpisodeData) {
    for (const channel of episode.channels) {
      const lane = channel.name.split("/", 1)[0]!;
      if (FLAGS.includes(channel.name)) this.#flags.set(channel.name, channel);
      else if (lane === "signal" || lane === "action") this.#rows.push(channel);
      else if (lane === "omen" || lane === "uncert" || lane === "residual") this.#lanes.push(channel);
      else
        wrong(
          "is in no lane: use signal/, action/, omen/, uncert/, residual/, reward, done or truncated",
          channel.name,
        );
      if (!FLAGS.includes(channel.name)) checkId(afterSlash(channel.name), channel.name);
    }
    checkKeys(episode.about, EPISODE_KEYS);
    for (const { about } of this.#rows) checkKeys(about, CHANNEL_KEYS);
  }

  tensors(): Tensor[] {
    const { episode } = this;
    const meta: [string, JsonObject][] = [
      [layout.META_WSHARD, this.#metaWShard()],
      [layout.META_EPISODE, this.#metaEpisode()],
      [layout.META_CHANNELS, { channels: this.#rows.map((each) => this.#listed(each)), modality_groups: {} }],
    ];
    if (episode.models?.length) meta.push([layout.META_MODELS, { models: episode.models }]);
    const out: Tensor[] = meta.map(([name, value]) => ({
      name,
      raw: TEXT_ENCODER.encode(dumpJson(value)),
      rowBytes: 1,
      contentType: layout.CONTENT_JSON,
      isMeta: true,
    }));
    for (const channel of this.#rows) out.push(this.#tensor(channel));
    for (const name of FLAGS) out.push(...this.#flag(name));
    out.push(this.#time());
    for (const { name, timesNs } of this.#rows) {
      if (timesNs) out.push(this.#times(`time/${name}/timestamps_ns`, timesNs));
    }
    for (const channel of [...this.#rows, ...this.#lanes]) {
      if (!isDType(channel.dtype)) {
        const ends = BigInt64Array.from(texts(channel).ends, BigInt);
        out.push({ ...numbers(layout.ENDS_PREFIX + channel.name, ends), rowBytes: 8 });
      }
    }
    for (const channel of this.#lanes) out.push(this.#tensor(channel));
    for (const [name, raw] of episode.blocks ?? []) {
      const isMeta = name.startsWith("meta/");
      const contentType = isMeta ? layout.CONTENT_JSON : name.startsWith("video/") ? layout.CONTENT_VIDEO : 0;
      out.push({ name, raw, rowBytes: 1, contentType, isMeta: true });
    }
    return out;
  }

  #metaWShard(): JsonObject {
    const exact: JsonObject = {};
    for (const [name, { dtype, about }] of this.#flags) {
      const isSaid = about && Object.keys(about).length > 0;
      if (name !== layout.REWARD || dtype !== "f32" || isSaid) exact[name] = { dtype, ...(isSaid && { about }) };
    }
    return {
      format: "W-SHARD",
      version: 1,
      writer: "@warpdata/wshard",
      residual_edges: "pad",
      timebase: this.#timebase(),
      lanes: this.#lanes.map((each) => ({
        block: each.name,
        ...typeOf(each),
        ...(each.about && Object.keys(each.about).length > 0 && { about: each.about }),
      })),
      exact,
      absent: [layout.REWARD, layout.DONE].filter((name) => !this.#flags.has(name)),
    };
  }

  #timebase(): JsonObject {
    const { type, tickHz } = this.episode.timebase ?? {
      type: this.episode.timesNs ? "timestamps_ns" : "ticks",
      tickHz: 30,
    };
    if (type === "timestamps_ns" && !this.episode.timesNs) wrong("the timebase needs timesNs");
    return { type, tick_hz: tickHz, dt_ns: roundHalfEven(1e9 / tickHz) };
  }

  #metaEpisode(): JsonObject {
    const { id, envId, length, about, chunk, metadata } = this.episode;
    return {
      episode_id: id,
      env_id: envId ?? "",
      length_T: length,
      timebase: this.#timebase(),
      ...about,
      ...(chunk && { chunk_index: chunk.index }),
      ...(chunk?.total !== undefined && { total_chunks: chunk.total }),
      // Chunk files have always stored the last step of the range, not the one after it.
      ...(chunk?.steps && { timestep_range: [chunk.steps[0], chunk.steps[1] - 1] }),
      ...(metadata && Object.keys(metadata).length > 0 && { metadata }),
    };
  }

  #listed(channel: ChannelData): JsonObject {
    const { name, about, timesNs, dtype } = channel;
    return {
      ...about,
      id: afterSlash(name),
      ...typeOf(channel),
      signal_block: name,
      ...(timesNs && { clock: `time/${name}/timestamps_ns` }),
      ...(!isDType(dtype) && { content_type_code: contentOf(dtype) }),
    };
  }

  #tensor(channel: ChannelData): Tensor {
    const { name, dtype, timesNs } = channel;
    const isResidual = name.startsWith("residual/");
    const rows = timesNs ? timesNs.length : this.episode.length;
    if (timesNs && !this.#rows.includes(channel)) wrong("only observations and actions have clocks of their own", name);
    if (!isDType(dtype)) {
      const { bytes, ends } = texts(channel);
      if (ends.length !== rows && !isResidual) wrong(`has ${ends.length} values where ${rows} were expected`, name);
      return { name, raw: bytes, rowBytes: 1, contentType: contentOf(dtype) };
    }
    const tensor = numbers(name, channel.data);
    const rowBytes = rowBytesOf(channel);
    if (!isResidual && tensor.raw.length !== rows * rowBytes) {
      wrong(`has ${tensor.raw.length} bytes, ${rows} rows of ${rowBytes} were expected`, name);
    }
    return { ...tensor, rowBytes };
  }

  /** Rewards and flags in the dtypes existing readers take them for; what that would change is kept beside them. */
  #flag(name: string): Tensor[] {
    const channel = this.#flags.get(name);
    const plainBytes = name === layout.REWARD ? 4 : 1;
    const { length } = this.episode;
    if (!channel) {
      if (name === layout.TRUNCATED) return [];
      return [{ name, raw: new Uint8Array(plainBytes * length), rowBytes: plainBytes, contentType: 0 }];
    }
    const { dtype } = channel;
    if (!isDType(dtype) || channel.timesNs || channel.shape?.length) {
      wrong("holds one number per step, without a clock of its own", name);
    }
    const exact = this.#tensor(channel);
    const values = toFloat32(dtype, exact.raw);
    const isNew = !this.episode.asStored;
    if (isNew && name !== layout.REWARD && !values.every((each) => each === 0 || each === 1)) {
      wrong("holds values other than 0 and 1", name);
    }
    if (fitsOwnBlock(name, dtype)) return [exact];
    const plain = name === layout.REWARD ? values : Uint8Array.from(values, (each) => Number(each !== 0));
    return [
      { ...numbers(name, plain), rowBytes: plainBytes },
      { ...exact, name: layout.EXACT[name]! },
    ];
  }

  #time(): Tensor {
    const { length, timesNs } = this.episode;
    if (!timesNs)
      return {
        ...numbers(
          layout.TICKS,
          Int32Array.from({ length }, (_, step) => step),
        ),
        rowBytes: 4,
      };
    if (timesNs.length !== length) wrong(`has ${timesNs.length} times for ${length} steps`, layout.TIMESTAMPS_NS);
    return this.#times(layout.TIMESTAMPS_NS, timesNs);
  }

  #times(name: string, stamps: BigInt64Array): Tensor {
    const late = stamps.findIndex((each, index) => index > 0 && each <= stamps[index - 1]!);
    if (late > 0 && !this.episode.asStored) {
      wrong(`${stamps[late]} at step ${late} is not later than ${stamps[late - 1]} before it`, name);
    }
    return { ...numbers(name, stamps), rowBytes: 8 };
  }
}

function checkId(id: string, block: string): void {
  const isOdd = id.split("/").some((part) => part === "" || part === "." || part === "..");
  if (isOdd || CONTROL.test(id)) wrong("is no channel id: use names joined by '/', without control characters", block);
}

function checkKeys(about: JsonObject | undefined, taken: Set<string>): void {
  const found = Object.keys(about ?? {}).find((key) => taken.has(key));
  if (found) wrong(`about has the key '${found}', which the format says itself`);
}

function contentOf(dtype: string): number {
  return dtype === "json" ? layout.CONTENT_JSON : layout.CONTENT_TEXT;
}

function typeOf({ name, dtype, shape }: ChannelData): JsonObject {
  if (isDType(dtype)) return { dtype, shape: [...(shape ?? [])] };
  return { dtype: "u8", shape: [], encoding: dtype, ends: layout.ENDS_PREFIX + name };
}

function rowBytesOf({ dtype, shape }: ChannelData): number {
  return (shape ?? []).reduce((size, side) => size * side, DTYPES[dtype as DType]);
}

function texts({ name, dtype, data }: ChannelData): StoredTexts {
  if ("ends" in data) return data;
  if (!Array.isArray(data)) return wrong("holds no list of values", name);
  const parts = data.map((each) => {
    if (dtype === "text" && typeof each !== "string") wrong("text was expected", name);
    return TEXT_ENCODER.encode(dtype === "text" ? (each as string) : dumpJson(each as Json));
  });
  let end = 0;
  const ends = parts.map((part) => {
    end += part.length;
    return end;
  });
  return { bytes: joinBytes(parts), ends };
}

function numbers(name: string, data: ChannelData["data"]): Tensor {
  if (!ArrayBuffer.isView(data)) return wrong("holds no numbers", name);
  const raw = new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
  return { name, raw, rowBytes: 1, contentType: layout.CONTENT_RAW };
}

/** JSON text; whole numbers keep their digits, floats stay floats, what JSON cannot say is an error. */
export function dumpJson(value: Json | undefined, wasFloat = false): string {
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") return dumpNumber(value, wasFloat);
  if (Array.isArray(value)) {
    return `[${value.map((each, index) => dumpJson(each, isFraction(value, index))).join(",")}]`;
  }
  if (typeof value === "object" && value !== null) {
    const parts = Object.entries(value).filter(([, each]) => each !== undefined);
    const items = parts.map(([key, each]) => `${JSON.stringify(key)}:${dumpJson(each, isFraction(value, key))}`);
    return `{${items.join(",")}}`;
  }
  return JSON.stringify(value) ?? wrong("metadata is not JSON");
}

/** A number as JSON; beyond 2^53 it is a float, because whole numbers are BigInts there. */
function dumpNumber(value: number, wasFloat: boolean): string {
  if (!Number.isFinite(value)) wrong(`metadata is not JSON: ${value}`);
  if (Object.is(value, -0)) return "-0.0";
  const text = JSON.stringify(value);
  const isFloat = wasFloat || !Number.isSafeInteger(value);
  return isFloat && /^-?\d+$/.test(text) ? `${text}.0` : text;
}

interface Stored extends Tensor {
  stored: Uint8Array;
  flags: number;
}

function encodeShard(tensors: Tensor[], options: WriteOptions, role = layout.ROLE_EPISODE): Uint8Array {
  const blocks: Stored[] = [];
  const pieces: Stored[] = [];
  for (const tensor of tensors) {
    const { raw } = tensor;
    const isTried = options.compression === "zstd" && !tensor.isMeta && raw.length >= layout.MIN_COMPRESSED_BYTES;
    const packed = isTried ? encodeZstd(raw) : raw;
    const isWithinLimits = raw.length <= Math.max(layout.MAX_EXPANDED_BYTES, packed.length * layout.MAX_LARGE_RATIO);
    const isPacked = packed.length < raw.length && isWithinLimits;
    blocks.push({ ...tensor, stored: isPacked ? packed : raw, flags: isPacked ? layout.FLAGS_ZSTD : layout.FLAGS_RAW });
    if (!isPacked && !tensor.isMeta && raw.length > layout.PIECES_FROM_BYTES) pieces.push(piecesOf(tensor));
  }
  blocks.push(...pieces);
  const names = blocks.map((each) => TEXT_ENCODER.encode(each.name));
  names.forEach(checkedName);
  const align = (at: number) => Math.ceil(at / layout.ALIGNMENT) * layout.ALIGNMENT;
  const namesAt = layout.HEADER_BYTES + layout.ENTRY_BYTES * blocks.length;
  const dataAt = align(namesAt + names.reduce((sum, each) => sum + each.length, 0));
  let end = dataAt;
  const offsets = blocks.map((each) => {
    const at = align(end);
    end = at + each.stored.length;
    return at;
  });
  const out = new Uint8Array(end);
  const view = new DataView(out.buffer);
  const u64 = (at: number, value: number) => view.setBigUint64(at, BigInt(value), true);
  out.set(TEXT_ENCODER.encode(layout.MAGIC));
  out.set([layout.VERSION, role], 4);
  view.setUint16(6, layout.HEADER_FLAGS, true);
  view.setUint8(8, layout.ALIGNMENT);
  view.setUint16(10, layout.ENTRY_BYTES, true);
  view.setUint32(12, blocks.length, true);
  u64(16, namesAt);
  u64(24, dataAt);
  u64(40, end);
  let nameAt = 0;
  blocks.forEach((block, index) => {
    const at = layout.HEADER_BYTES + layout.ENTRY_BYTES * index;
    const name = names[index]!;
    view.setBigUint64(at, xxh64(name), true);
    view.setUint32(at + 8, nameAt, true);
    view.setUint16(at + 12, name.length, true);
    view.setUint16(at + 14, block.flags, true);
    u64(at + 16, offsets[index]!);
    u64(at + 24, block.stored.length);
    u64(at + 32, block.raw.length);
    view.setUint32(at + 40, crc32c(block.raw), true);
    view.setUint16(at + 44, block.contentType, true);
    out.set(name, namesAt + nameAt);
    out.set(block.stored, offsets[index]!);
    nameAt += name.length;
  });
  out.set(TEXT_ENCODER.encode(layout.MARK), layout.MARKED_HEADER_BYTES);
  view.setUint32(52, tableCrc32c(out.subarray(0, dataAt)), true);
  return out;
}

/** One checksum per piece of a large raw block, so that a window can be verified alone. */
function piecesOf({ name, raw, rowBytes }: Tensor): Stored {
  const rows = Math.max(1, Math.floor(layout.PIECE_BYTES / rowBytes));
  const size = rows * rowBytes;
  const list = Uint32Array.from([
    rows,
    ...Array.from({ length: Math.ceil(raw.length / size) }, (_, index) =>
      crc32c(raw.subarray(index * size, (index + 1) * size)),
    ),
  ]);
  const bytes = new Uint8Array(list.buffer);
  return { name: layout.PIECES_PREFIX + name, raw: bytes, stored: bytes, rowBytes: 4, contentType: 0, flags: 0 };
}
