/** What the blocks of an episode hold: the metadata JSON of three existing programs, read into one form. */
import { DTYPES, type DType, isDType } from "./dtype.js";
import { about as aboutBlock, corrupt } from "./errors.js";
import { isFraction, isObject, type Json, type JsonObject, parseJsonObject } from "./json.js";
import * as layout from "./layout.js";
import type { Shard } from "./shard.js";

export type Lane = "signal" | "action" | "omen" | "uncert" | "residual" | "reward" | "done" | "truncated";
export type Role =
  | "observation"
  | "action"
  | "reward"
  | "terminated"
  | "truncated"
  | "event"
  | "prediction"
  | "uncertainty"
  | "residual"
  | "other";

/** The element type and the shape of one row, without the time axis. */
export interface TensorSpec {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly rowBytes: number;
}

export interface TextSpec {
  readonly encoding: "text" | "json";
  readonly ends: string;
}

/** How steps relate to time: a fixed rate, or a timestamp per step. */
export interface Timebase {
  readonly type: "ticks" | "timestamps_ns";
  readonly tickHz: number;
}

export interface ChannelSpec {
  readonly id: string;
  readonly lane: "signal" | "action";
  readonly block: string;
  readonly tensor: TensorSpec;
  readonly clock: string | undefined;
  readonly about: JsonObject;
}

/** Which chunk of an episode this is; `steps` is half-open. */
export interface ChunkPosition {
  readonly index: number;
  readonly total: number | undefined;
  readonly steps: readonly [number, number] | undefined;
}

/** Everything the metadata blocks of an episode say. */
export interface EpisodeSchema {
  id: string;
  envId: string;
  length: number;
  timebase: Timebase;
  channels: ChannelSpec[];
  lanes: Map<string, TensorSpec>;
  texts: Map<string, TextSpec>;
  flags: Map<string, DType>;
  blockAbout: Map<string, JsonObject>;
  absent: Set<string>;
  metadata: JsonObject;
  models: Json[];
  chunk: ChunkPosition | undefined;
  about: JsonObject;
}

const MAX_RANK = 16;
const MAX_ROW_BYTES = 2 ** 40;
const MAX_COUNT = 2 ** 48;
const MIN_HZ = 1e-9;
const DEFAULT_HZ = 30;
export const CHANNEL_KEYS = new Set(["id", "dtype", "shape", "signal_block", "clock", "content_type_code", "ends"]);
export const EPISODE_KEYS = new Set([
  "episode_id",
  "id",
  "env_id",
  "length_T",
  "length_t",
  "timebase",
  "chunk_index",
  "total_chunks",
  "timestep_range",
  "metadata",
]);

export function tensorSpec(dtype: string, shape: readonly number[] = []): TensorSpec {
  if (!isDType(dtype)) corrupt(`unknown dtype '${dtype}'; the thirteen are ${Object.keys(DTYPES).join(", ")}`);
  return { dtype, shape, rowBytes: shape.reduce((size, side) => size * side, DTYPES[dtype]) };
}

/** Read the metadata of an episode shard, whichever program wrote it. */
export async function readSchema(shard: Shard): Promise<EpisodeSchema> {
  const read = async <T>(name: string, parse: (meta: JsonObject) => T, absent?: () => T): Promise<T> => {
    if (!shard.has(name)) {
      if (absent) return absent();
      corrupt("is missing: this is no episode", name);
    }
    const data = await shard.read(name);
    return aboutBlock(name, () => parse(parseJsonObject(data)));
  };
  const stated = await read(layout.META_WSHARD, readStated, () => readStated({}));
  const episode = await read(layout.META_EPISODE, (meta) => {
    const length = lengthOf(meta, shard);
    const timebase = timebaseOf(meta["timebase"], stated.timebase);
    const chunk = chunkOf(meta, length);
    const id = text(meta, "episode_id", "id");
    const envId = text(meta, "env_id");
    const about = pick(meta, (key) => !EPISODE_KEYS.has(key));
    return { id, envId, length, timebase, chunk, metadata: object(meta["metadata"]), about };
  });
  const [channels, texts] = await read(layout.META_CHANNELS, (meta) => readChannels(meta, shard.blocks));
  const models = await read(
    layout.META_MODELS,
    (meta) => list(meta["models"]),
    () => [],
  );
  return { ...stated, ...episode, channels, texts: new Map([...texts, ...stated.texts]), models };
}

function readStated(meta: JsonObject) {
  const entries = list(meta["lanes"]).map(object);
  const lanes = new Map<string, TensorSpec>();
  const texts = new Map<string, TextSpec>();
  const blockAbout = new Map<string, JsonObject>();
  for (const each of entries) {
    const block = text(each, "block");
    lanes.set(block, tensorOf(each, block));
    addText(texts, block, each);
    if ("about" in each) blockAbout.set(block, object(each["about"]));
  }
  const flags = new Map<string, DType>();
  for (const [name, value] of Object.entries(object(meta["exact"]))) {
    const each = object(value);
    if (!Object.hasOwn(layout.EXACT, name)) continue;
    flags.set(name, tensorSpec(text(each, "dtype")).dtype);
    if ("about" in each) blockAbout.set(name, object(each["about"]));
  }
  const absent = new Set(list(meta["absent"]).map(String));
  return { timebase: meta["timebase"], lanes, texts, flags, blockAbout, absent };
}

function readChannels(meta: JsonObject, blocks: ReadonlyMap<string, unknown>): [ChannelSpec[], Map<string, TextSpec>] {
  const stated = meta["channels"];
  const entries = isObject(stated)
    ? Object.entries(stated).map(([name, value]) => ({ signal_block: name, ...object(value) }))
    : list(stated).map(object);
  const named = new Set(entries.map((each) => text(each, "signal_block")));
  const channels: ChannelSpec[] = [];
  const seen = new Set<string>();
  const texts = new Map<string, TextSpec>();
  for (const each of entries) {
    const channel = channelOf(each, blocks, named);
    if (seen.has(channel.block)) corrupt(`channel '${channel.block}' is listed twice`);
    seen.add(channel.block);
    channels.push(channel);
    addText(texts, channel.block, each);
  }
  return [channels, texts];
}

function channelOf(each: JsonObject, blocks: ReadonlyMap<string, unknown>, named: Set<string>): ChannelSpec {
  let block = text(each, "signal_block");
  const id = text(each, "id") || afterSlash(block);
  if (!block || (!blocks.has(block) && !named.has(`action/${id}`))) {
    block ||= `signal/${id}`;
    // Two existing writers list actions as if they were signals; the block that is there decides.
    if (block === `signal/${id}` && !blocks.has(block) && blocks.has(`action/${id}`)) block = `action/${id}`;
  }
  const lane = beforeSlash(block);
  if ((lane !== "signal" && lane !== "action") || !afterSlash(block) || !id) {
    corrupt(`channel '${id}' has no signal or action block`);
  }
  const clock = each["clock"] ?? undefined;
  if (clock !== undefined && (typeof clock !== "string" || !blocks.has(clock))) {
    corrupt(`channel '${id}' names a clock that is not there`);
  }
  const about = pick(each, (key) => !CHANNEL_KEYS.has(key) && !(key === "encoding" && "ends" in each));
  return { id, lane, block, tensor: tensorOf(each, id), clock, about };
}

/** The members whose keys are wanted. */
function pick(source: JsonObject, isWanted: (key: string) => boolean): JsonObject {
  return Object.fromEntries(Object.entries(source).filter(([key]) => isWanted(key)));
}

/** What stands before the first slash: the lane of a block. */
export function beforeSlash(name: string): string {
  return name.split("/", 1)[0]!;
}

/** What stands behind the first slash. */
export function afterSlash(name: string): string {
  const at = name.indexOf("/");
  return at < 0 ? "" : name.slice(at + 1);
}

function addText(texts: Map<string, TextSpec>, block: string, each: JsonObject): void {
  if (!("ends" in each)) return;
  const encoding = text(each, "encoding");
  const shape = each["shape"];
  const isOne = Array.isArray(shape) && shape.length === 0 && text(each, "dtype") === "u8";
  if ((encoding !== "text" && encoding !== "json") || !isOne) {
    corrupt(`'${block}' is neither text nor JSON by step`);
  }
  texts.set(block, { encoding, ends: text(each, "ends") });
}

function tensorOf(each: JsonObject, what: string): TensorSpec {
  const shape = list(each["shape"]);
  const sides = shape.map((_, index) => count(shape, index, `shape of '${what}'`));
  if (sides.length > MAX_RANK) corrupt(`'${what}' has ${sides.length} axes`);
  const spec = tensorSpec(text(each, "dtype") || "f32", sides);
  if (spec.rowBytes > MAX_ROW_BYTES) corrupt(`too large: rows of ${spec.rowBytes} bytes in '${what}'`);
  return spec;
}

export function text(source: JsonObject, ...keys: string[]): string {
  for (const key of keys) {
    if (!Object.hasOwn(source, key)) continue;
    const found = source[key];
    return typeof found === "string" ? found : corrupt(`${key} is not a string`);
  }
  return "";
}

/** A whole number from 0 on, out of an object or a list. */
export function count(holder: JsonObject | Json[], key: string | number, what = key): number {
  const value = (holder as JsonObject)[key];
  if (typeof value !== "number" || value < 0 || value >= MAX_COUNT || isFraction(holder, key)) {
    corrupt(`${what}: expected a count, got ${String(value)}`);
  }
  return value;
}

function object(value: Json | undefined): JsonObject {
  if ((value ?? undefined) === undefined) return {};
  return isObject(value) ? value : corrupt("metadata is not an object");
}

/** A list; what is not there is an empty one. */
function list(value: Json = []): Json[] {
  return Array.isArray(value) ? value : corrupt("a list was expected");
}

function lengthOf(episode: JsonObject, shard: Shard): number {
  for (const key of ["length_T", "length_t"]) {
    if (Object.hasOwn(episode, key)) return count(episode, key);
  }
  if (shard.has(layout.DONE)) return shard.block(layout.DONE).rawSize;
  return corrupt("the length of the episode is missing");
}

function timebaseOf(...sources: (Json | undefined)[]): Timebase {
  const given = sources.filter(isObject);
  const words = sources.filter((each) => typeof each === "string");
  const typed = given.find((each) => "type" in each);
  let type = typed ? typed["type"] : (words[0] ?? "ticks");
  // Existing readers take microseconds for ticks; a rate without timestamps is all such a file has.
  if (type === "timestamps_us") type = "ticks";
  if (type !== "ticks" && type !== "timestamps_ns") {
    return corrupt(`unknown timebase ${String(type)}`);
  }
  let tickHz = DEFAULT_HZ;
  const rate = given.find((each) => isSaid(each["tick_hz"]));
  const interval = given.find((each) => isSaid(each["dt_ns"]));
  if (rate) tickHz = number(rate["tick_hz"], "tick_hz");
  else if (interval) tickHz = rateOf(number(interval["dt_ns"], "dt_ns"));
  if (!(tickHz >= MIN_HZ && tickHz <= Number.MAX_VALUE)) corrupt(`invalid tick_hz ${tickHz}`);
  return { type, tickHz };
}

/** Zero, nothing and empty values say nothing of a rate. */
function isSaid(value: Json | undefined): boolean {
  if (typeof value === "object" && value !== null) return Object.keys(value).length > 0;
  return Boolean(value);
}

function number(value: Json | undefined, what: string): number {
  if (typeof value !== "number" && typeof value !== "bigint") return corrupt(`${what} is not a number`);
  return Number(value);
}

/** Round half to even, as Python does. */
export function roundHalfEven(value: number): number {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest !== 0.5) return rest < 0.5 ? low : low + 1;
  return low % 2 === 0 ? low : low + 1;
}

/** The rate behind an interval that was cut or rounded to whole nanoseconds. */
function rateOf(dtNs: number): number {
  const rate = 1e9 / dtNs;
  const whole = roundHalfEven(rate);
  const isWhole = whole !== 0 && (dtNs === Math.trunc(1e9 / whole) || dtNs === roundHalfEven(1e9 / whole));
  return isWhole ? whole : rate;
}

function chunkOf(episode: JsonObject, length: number): ChunkPosition | undefined {
  const steps = rangeOf(episode["timestep_range"], length);
  const number = (key: string) => ((episode[key] ?? undefined) === undefined ? undefined : count(episode, key));
  const index = number("chunk_index");
  return index === undefined ? undefined : { index, total: number("total_chunks"), steps };
}

function rangeOf(value: Json | undefined, length: number): [number, number] | undefined {
  if (value === null || value === undefined) return undefined;
  if (!Array.isArray(value) || value.length !== 2) return corrupt("timestep_range is not a pair");
  if (value[0] === 0 && value[1] === 0) return length === 1 ? [0, 1] : undefined;
  const start = count(value, 0, "timestep_range");
  const end = count(value, 1, "timestep_range");
  if (end - start + 1 === length) return [start, end + 1];
  if (end - start === length) return [start, end];
  return corrupt(`timestep_range: expected ${length} steps, got [${start}, ${end}]`);
}

/** Dtype and shape of a block no metadata describes, from its name and size; undefined if nothing fits. */
export function guessSpec(name: string, rawSize: number, schema: EpisodeSchema): TensorSpec | undefined {
  const lane = beforeSlash(name);
  const fits = (each: ChannelSpec) => each.lane === "signal" && each.tensor.rowBytes * schema.length === rawSize;
  if (lane === "action") {
    // One existing writer lists a channel once and stores what was seen and what was done under its id.
    const namesake = schema.channels.find((each) => fits(each) && each.id === afterSlash(name));
    return namesake?.tensor ?? rowsOf("f32", rawSize, schema.length);
  }
  if (lane === "residual") return tensorSpec("u8");
  if (lane !== "omen" && lane !== "uncert") return undefined;
  if (name.startsWith("omen/latent_action_codebook/")) return rowsOf("i32", rawSize, schema.length);
  if (name.startsWith("omen/latent_action/")) return rowsOf("f32", rawSize, schema.length);
  // A prediction has the dtype and shape of the signal it predicts, if the size agrees.
  return schema.channels.find((each) => fits(each) && `${afterSlash(name)}/`.startsWith(`${each.id}/`))?.tensor;
}

/** A flat block cut into `length` rows; one element per row is a scalar. */
function rowsOf(dtype: DType, rawSize: number, length: number): TensorSpec | undefined {
  const step = DTYPES[dtype] * length;
  if (step === 0 || rawSize % step) return undefined;
  const width = rawSize / step;
  return tensorSpec(dtype, width === 1 ? [] : [width]);
}

/** What part a signal plays, about which other one, and by which model. */
export interface Part {
  readonly role: Role;
  readonly of?: string;
  readonly model?: string;
}

export const ROLE_OF_NAME: Record<string, Role> = {
  action: "action",
  actions: "action",
  reward: "reward",
  rewards: "reward",
  terminated: "terminated",
  done: "terminated",
  truncated: "truncated",
  omen: "prediction",
  prediction: "prediction",
  uncert: "uncertainty",
  uncertainty: "uncertainty",
  residual: "residual",
};

/** The part of a signal that nobody stated, by its name: `action/…`, `reward`, `omen/joints/dreamer`, … */
export function guessPart(name: string, isEvent: boolean): Part {
  const [first = "", ...rest] = name.split("/");
  const role = Object.hasOwn(ROLE_OF_NAME, first) ? ROLE_OF_NAME[first] : undefined;
  if (role === "prediction" || role === "uncertainty" || role === "residual") {
    return partAbout(
      role,
      rest.filter((part) => part !== ""),
    );
  }
  if (role === "action" || (role && !rest.join("/"))) return { role };
  return { role: isEvent ? "event" : "observation" };
}

function partAbout(role: Role, parts: string[]): Part {
  const part = (of: string[], model: string[]): Part => ({
    role,
    ...(of.length && { of: of.join("/") }),
    ...(model.length && { model: model.join("/") }),
  });
  if (role === "residual") {
    const found = parts.findIndex((each, at) => at > 0 && (each === "error" || each === "sign2nddiff"));
    const at = found < 0 ? parts.length : found;
    return part(parts.slice(0, at), parts.slice(at + 1));
  }
  const named = role === "uncertainty" && parts.length > 2 ? parts.slice(0, -1) : parts;
  return named.length < 2 ? part(named, []) : part(named.slice(0, -1), named.slice(-1));
}
