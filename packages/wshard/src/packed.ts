/** Recordings packed into one shard: signals with times of their own, cameras and events beside the rows of steps. */

import { checkRange, sum } from "./bytes.js";
import { type DType, isDType, type TypedArray, typedArray } from "./dtype.js";
import type { Episode } from "./episode.js";
import { corrupt } from "./errors.js";
import { isObject, type Json, type JsonObject } from "./json.js";
import * as layout from "./layout.js";
import { blockRows, joinedRows } from "./rows.js";
import { guessPart, type Part, ROLE_OF_NAME, type Role, tensorSpec } from "./schema.js";
import type { Shard } from "./shard.js";

const KINDS: readonly string[] = ["scalar", "vector", "tensor", "image", "text", "bytes", "ragged", "sound"];
const ROLES: readonly string[] = [...Object.values(ROLE_OF_NAME), "observation", "event", "other"];
const DAMAGED = "invalid metadata of the recording";
const BYTES_TAG = "__bytes_base64__";

/** One signal of a recording: rows of numbers (of varying number in each record, if it has offsets), or a file. */
export class Signal {
  declare readonly kind: string;
  /** One of the thirteen, or `text` or `bytes`. */
  declare readonly dtype: string;
  /** Of one record; of ragged signals and sound, of one row. */
  declare readonly shape: readonly number[];
  /** Of sound: samples in a second. */
  declare readonly sampleRateHz: number | undefined;
  declare readonly units: string | undefined;
  declare readonly names: readonly string[] | undefined;
  declare readonly part: Part;
  /** The name that signals recorded at the same times share. */
  declare readonly clock: string | undefined;
  /** Records, where the directory says how many. */
  declare readonly length: number | undefined;
  /** The block of its parquet file, where it is a table of events. */
  declare readonly table: string | undefined;
  /** The block of its encoded video and that of its frame index, where it is a camera. */
  declare readonly video: { readonly block: string; readonly frames: string } | undefined;

  readonly #shard: Shard;
  readonly #blocks: string[];
  readonly #times: string;
  readonly #offsets: string | undefined;

  constructor(
    shard: Shard,
    readonly name: string,
    stated: Json,
  ) {
    if (!isObject(stated)) corrupt(DAMAGED, layout.META_DIRECTORY);
    const text = (key: string): string | undefined => {
      const value = stated[key] ?? undefined;
      return value === undefined ? undefined : String(value);
    };
    const bad = (what: string): never => {
      corrupt(`signal '${name}' ${what}`, layout.META_DIRECTORY);
    };
    this.#shard = shard;
    this.kind = text("kind") ?? bad("has no kind");
    this.dtype = text("dtype") ?? bad("has no dtype");
    const { shape, names } = stated;
    if (!Array.isArray(shape) || !shape.every((side) => typeof side === "number" && side >= 1)) bad("has a bad shape");
    this.shape = shape as number[];
    this.units = text("units");
    this.names = Array.isArray(names) ? names.map(String) : undefined;
    this.clock = text("clock");
    const isObjects = this.kind === "text" || this.kind === "bytes";
    if (!KINDS.includes(this.kind) || !(isDType(this.dtype) || (isObjects && this.dtype === this.kind))) {
      bad(`is of kind '${this.kind}', type '${this.dtype}'`);
    }
    const role = text("role");
    if (role !== undefined && !ROLES.includes(role)) bad(`has the role '${role}'`);
    const of = text("of");
    const model = text("model");
    const said = role === undefined ? undefined : { role: role as Role, ...(of && { of }), ...(model && { model }) };
    this.part = said ?? guessPart(name, isObjects);
    const video = text("video");
    const frames = text("frames");
    this.video = video !== undefined && frames !== undefined ? { block: video, frames } : undefined;
    this.table = this.video ? undefined : text("table");
    const isRows = !this.video && this.table === undefined;
    this.length = isRows ? Number(stated["count"] ?? 0) : undefined;
    this.#blocks = isRows ? [text("block"), text("more")].filter((each) => each !== undefined) : [];
    this.#times = text("times") ?? layout.TIMESTAMPS_NS;
    const isRagged = this.kind === "ragged" || this.kind === "sound";
    this.#offsets = isRagged ? (text("offsets") ?? bad("has no offsets")) : undefined;
    this.sampleRateHz = this.kind === "sound" ? Number(stated["sample_rate_hz"]) : undefined;
  }

  get role(): Role {
    return this.part.role;
  }

  /** Of a ragged signal or sound: the first row of every record, and the number of rows; undefined of all else. */
  async offsets(): Promise<number[] | undefined> {
    if (this.#offsets === undefined) return undefined;
    const found = [...(typedArray("i64", await this.#shard.read(this.#offsets)) as BigInt64Array)].map(Number);
    const isOrdered = found[0] === 0 && found.every((each, index) => index === 0 || each >= found[index - 1]!);
    if (found.length !== (this.length ?? 0) + 1 || !isOrdered) corrupt("invalid offsets", this.#offsets);
    return found;
  }

  /** The bytes of records [start, end), where the signal is rows of numbers. */
  async bytes(start = 0, end = this.length ?? 0): Promise<Uint8Array> {
    const spec = tensorSpec(this.#number(), this.shape);
    const parts = this.#blocks.map((block) => {
      const rows = this.#shard.block(block).rawSize / spec.rowBytes;
      return blockRows(this.#shard, block, spec, Number.isInteger(rows) ? rows : corrupt("holds no whole rows", block));
    });
    const counts = parts.map((each) => each.length);
    const total = sum(counts);
    const offsets = await this.offsets();
    const expected = offsets ? offsets.at(-1)! : this.length;
    if (total !== expected) corrupt(`${total} rows of ${expected} are there`, this.#blocks[0]);
    checkRange(start, end, this.length!, `records of signal '${this.name}'`);
    const rows = joinedRows(spec, counts, async (index) => parts[index]!);
    return offsets ? rows.bytes(offsets[start]!, offsets[end]!) : rows.bytes(start, end);
  }

  /** Records [start, end) as numbers, one after the other; f16 and bf16 as their bits. */
  async values(start?: number, end?: number): Promise<TypedArray> {
    return typedArray(this.#number(), await this.bytes(start, end));
  }

  /** The times of all records; those of tables and cameras are in their own files. */
  async timesNs(): Promise<BigInt64Array> {
    this.#number();
    const times = typedArray("i64", await this.#shard.read(this.#times)) as BigInt64Array;
    const isOrdered = times.every((each, index) => index === 0 || each > times[index - 1]!);
    if (times.length !== this.length || !isOrdered) {
      corrupt("invalid times", this.#times);
    }
    return times;
  }

  /** The parquet file of a table of events: columns `timestamp` and `value`. */
  async tableBytes(): Promise<Uint8Array> {
    if (this.table === undefined) throw new TypeError(`signal '${this.name}' is no table`);
    return this.#shard.read(this.table);
  }

  /** The parquet file that says where each frame of a camera lies, and when it was taken. */
  async frameIndexBytes(): Promise<Uint8Array> {
    return this.#shard.read(this.#camera().frames);
  }

  /**
   * Bytes [start, end) of the encoded video. The frame index has a checksum per frame to hold them against; without
   * `start` and `end` the whole video is read and verified.
   */
  async videoBytes(start?: number, end?: number): Promise<Uint8Array> {
    const { block } = this.#camera();
    if (start === undefined && end === undefined) return this.#shard.read(block);
    const { dataOffset, rawSize, codec } = this.#shard.block(block);
    if (codec !== "none") corrupt("compressed video", block);
    const low = start ?? 0;
    const high = end ?? rawSize;
    checkRange(low, high, rawSize, `bytes of block '${block}'`);
    return this.#shard.source.read(dataOffset + low, dataOffset + high);
  }

  #camera(): { block: string; frames: string } {
    if (!this.video) throw new TypeError(`signal '${this.name}' is no camera`);
    return this.video;
  }

  #number(): DType {
    if (this.length === undefined || !isDType(this.dtype)) {
      throw new TypeError(`signal '${this.name}' is no rows of numbers`);
    }
    return this.dtype;
  }
}

/** A packed recording: the same names, signals, static items and metadata as its folder had. */
export class Recording {
  /** In the order of the file; names that are numbers come first, as JavaScript has them in any object. */
  readonly signals = new Map<string, Signal>();

  private constructor(
    readonly id: string,
    /** Items that do not change in time, as JSON. */
    readonly items: JsonObject,
    readonly meta: JsonObject,
    /** Which clock says what the steps are, and whether rewards came with the `same` or the `next` observation. */
    readonly steps: { readonly clock: string; readonly outcome: "same" | "next" } | undefined,
  ) {}

  static async open(shard: Shard, episode: Episode): Promise<Recording> {
    const about = await shard.readJson(layout.META_DIRECTORY);
    const { version } = about;
    if (version !== 2) corrupt(`a recording packed in version ${String(version)}`, layout.META_DIRECTORY);
    const { static: items, meta, signals } = about;
    if (!isObject(items) || !isObject(meta) || !isObject(signals)) {
      corrupt(DAMAGED, layout.META_DIRECTORY);
    }
    const id = String(about["id"] || episode.id);
    const recording = new Recording(id, items, meta, stepsOf(about["steps"]));
    for (const [name, stated] of Object.entries(signals)) {
      recording.signals.set(name, new Signal(shard, name, stated));
    }
    return recording;
  }

  /** A static item; bytes as bytes. */
  static(name: string): Json | Uint8Array | undefined {
    const value = this.items[name];
    if (!isObject(value) || !(BYTES_TAG in value)) return value;
    return Uint8Array.from(atob(String(value[BYTES_TAG])), (char) => char.charCodeAt(0));
  }
}

function stepsOf(stated: Json | undefined): Recording["steps"] {
  if (!isObject(stated) || typeof stated["clock"] !== "string") return undefined;
  const outcome = stated["outcome"] ?? "same";
  return outcome === "same" || outcome === "next" ? { clock: stated["clock"], outcome } : undefined;
}
