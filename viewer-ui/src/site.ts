// A site without a server: the same questions, answered from files that are read by range, its own and published blobs.
import { blobFrame, blobPackets, blobRows, type BlobPlace, type BlobVideo } from "./blobs";
import { condition } from "./condition";
import { statisticsOf } from "./selection";
import { type Framed, type Query, Refused, type Typed, typed, unframe } from "./wire";

interface OwnPlace { at: number; dtype: string; shape: number[] }
type Place = OwnPlace | BlobPlace;
interface Level { times: Place; low: Place; high?: Place }
interface Stored { times?: Place; texts?: string[]; levels?: Level[]; groups?: [number, number, number, number][]; frames?: [number, number][]; shape?: number[];
  video?: BlobVideo & { packets: OwnPlace }; rows?: BlobPlace; limits?: [number, number] | null }
interface EpisodeFile {
  episode: { start_ns: string; signals: { number: number; shows: string; count: number }[] };
  events: unknown;
  errors: unknown;
  thumbnail: [number, number];
  signals: Record<string, Stored>;
  blobs: string[];
}
type Row = Record<string, unknown> & { id: string };
interface Site {
  dataset: { generation: number; columns: { name: string }[] };
  rows: Row[];
  distributions: Record<string, unknown>;
  checks: unknown;
  data: string | null;
}

const STEP = 16;
const files = new Map<string, Promise<EpisodeFile>>();
const pieces = new Map<string, Promise<ArrayBuffer>>();
const whole = new Map<string, Promise<ArrayBuffer>>();
let site: Promise<Site> | null = null;

export const siteName = (): string | undefined => document.documentElement.dataset.site;

async function load(name: string): Promise<Response> {
  const answer = await fetch(name);
  if (!answer.ok) throw new Refused(answer.status, `${name} is missing on this site`, "Export it again.");
  return answer;
}

const opened = (): Promise<Site> => (site ??= load(siteName()!).then((answer) => answer.json()));

async function position(id: string): Promise<number> {
  const at = (await opened()).rows.findIndex((row) => row.id === id);
  if (at < 0) throw new Refused(404, `no episode ${id} here`, "");
  return at;
}

export const siteSound = async (id: string, signal: number): Promise<string> => `e/${await position(id)}-${signal}.wav`;

async function fileOf(id: string): Promise<EpisodeFile> {
  const at = await position(id);
  if (!files.has(id)) files.set(id, load(`e/${at}.json`).then((answer) => answer.json()));
  return files.get(id)!;
}

/** Bytes [at, at + size) of the data of an episode; a server that knows no ranges is asked for all of it once. */
async function bytes(id: string, at: number, size: number): Promise<ArrayBuffer> {
  const name = `e/${await position(id)}.bin`;
  if (whole.has(name)) return (await whole.get(name)!).slice(at, at + size);
  const key = `${name} ${at} ${size}`;
  if (!pieces.has(key)) {
    pieces.set(
      key,
      (async () => {
        if (!size) return new ArrayBuffer(0);
        const answer = await fetch(name, { headers: { Range: `bytes=${at}-${at + size - 1}` } });
        if (!answer.ok) throw new Refused(answer.status, `${name} cannot be read`, "Export it again.");
        const body = await answer.arrayBuffer();
        if (answer.status === 206) return body;
        whole.set(name, Promise.resolve(body));
        return body.slice(at, at + size);
      })(),
    );
    if (pieces.size > 600) pieces.delete(pieces.keys().next().value!);
  }
  return pieces.get(key)!;
}

/** The address of a published blob. */
async function blobUrl(id: string, number: number): Promise<string> {
  const key = (await fileOf(id)).blobs[number]!.split("/").map(encodeURIComponent).join("/");
  return new URL(key, new URL((await opened()).data ?? "", document.baseURI)).href;
}

/** Rows [from, to) of a stored array; times come as nanoseconds since the start. */
async function rows(id: string, place: Place, from: number, to: number): Promise<Typed> {
  if ("blob" in place) return blobRows(await blobUrl(id, place.blob), place, from, to, BigInt((await fileOf(id)).episode.start_ns));
  const width = place.shape.slice(1).reduce((a, b) => a * b, 1);
  const item = Number(place.dtype.slice(1)) * width;
  return typed(place.dtype, await bytes(id, place.at + from * item, (to - from) * item), 0, (to - from) * width);
}

interface Part { times: Typed; low: Typed; high: Typed; start: number; width: number; level: number }

/** The finest level that is worth its bytes between two times, with one entry before and one behind. */
async function descend(id: string, levels: Level[], from: number, to: number, most: number): Promise<Part> {
  let level = levels.length - 1;
  let [a, b] = [0, levels[level]!.times.shape[0]!];
  for (;;) {
    const at = levels[level]!;
    const [times, low, high] = await Promise.all([rows(id, at.times, a, b), rows(id, at.low, a, b), at.high ? rows(id, at.high, a, b) : null]);
    const first = Math.max(0, upper(times, from) - 1);
    const last = Math.min(times.length, upper(times, to) + 1);
    const width = at.low.shape[1] ?? 1;
    const count = last - first;
    if (level === 0 || count * STEP > most * 4)
      return { times: times.subarray(first, last), low: low.subarray(first * width, last * width), high: (high ?? low).subarray(first * width, last * width), start: a + first, width, level };
    level--;
    const size = levels[level]!.times.shape[0]!;
    [a, b] = [(a + first) * STEP, Math.min((a + last) * STEP, size)];
  }
}

function upper(times: Typed, at: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle]! <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

async function points(query: Query): Promise<Framed> {
  const { file, stored, id } = await signalOf(query);
  const base = BigInt(file.episode.start_ns);
  const [from, to] = [Number(BigInt(query.from!) - base), Number(BigInt(query.to!) - base)];
  const width = Number(query.width);
  const part = await descend(id, stored.levels!, from, to, width);
  const count = part.times.length;
  if (part.level === 0 && count <= 2 * width) {
    const values = new Float64Array(count * part.width);
    for (let i = 0; i < count; i++) for (let c = 0; c < part.width; c++) values[c * count + i] = part.low[i * part.width + c]!;
    return { head: { exact: true }, arrays: { times: { data: part.times, shape: [count] }, values: { data: values, shape: [part.width, count] } } };
  }
  const buckets = Math.min(width, count);
  const times = new Float64Array(2 * buckets);
  const values = new Float64Array(2 * buckets * part.width).fill(Number.NaN);
  for (let k = 0; k < buckets; k++) {
    const [start, stop] = [Math.floor((k * count) / buckets), Math.floor(((k + 1) * count) / buckets)];
    times[2 * k] = part.times[start]!;
    times[2 * k + 1] = part.times[(start + stop) >> 1] ?? part.times[start]!;
    for (let c = 0; c < part.width; c++) {
      let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
      for (let i = start; i < stop; i++) {
        const [x, y] = [part.low[i * part.width + c]!, part.high[i * part.width + c]!];
        if (x < low) low = x;
        if (y > high) high = y;
      }
      if (low <= high) {
        values[c * 2 * buckets + 2 * k] = low;
        values[c * 2 * buckets + 2 * k + 1] = high;
      }
    }
  }
  return { head: { exact: false }, arrays: { times: { data: times, shape: [2 * buckets] }, values: { data: values, shape: [part.width, 2 * buckets] } } };
}

async function signalOf(query: Query): Promise<{ file: EpisodeFile; stored: Stored; id: string }> {
  const id = String(query.episode);
  const file = await fileOf(id);
  return { file, stored: file.signals[`${query.signal}${query.residual ? " residual" : ""}`]!, id };
}

async function at(query: Query): Promise<unknown> {
  const id = String(query.episode);
  const file = await fileOf(id);
  const when = Number(BigInt(query.at!) - BigInt(file.episode.start_ns));
  const values = await Promise.all(
    Object.entries(file.signals).map(async ([key, stored]) => {
      const each = { signal: Number.parseInt(key), ...(key.endsWith(" residual") && { is_residual: true }) };
      if (stored.levels) {
        const part = await descend(id, stored.levels, when, when, 64);
        const row = upper(part.times, when) - 1;
        if (row < 0) return { ...each, row: -1 };
        const found = Array.from(part.low.subarray(row * part.width, (row + 1) * part.width), (value) => (Number.isNaN(value) ? null : value));
        return { ...each, row: part.start + row, age_ns: when - part.times[row]!, values: found };
      }
      const times = await rows(id, stored.times!, 0, stored.times!.shape[0]!);
      const row = upper(times, when) - 1;
      if (row < 0) return { ...each, row };
      return { ...each, row, age_ns: when - times[row]!, ...(stored.texts ? { text: stored.texts[row] } : {}) };
    }),
  );
  return { at_ns: String(query.at), values };
}

/** The rows that a filter chooses. */
async function selected(query: Query): Promise<Row[]> {
  const { rows: all, dataset } = await opened();
  return all.filter(condition(String(query.where ?? ""), dataset.columns.map((each) => each.name)));
}

async function episodes(query: Query): Promise<unknown> {
  const { dataset } = await opened();
  let chosen = await selected(query);
  const sort = String(query.sort ?? "");
  if (sort)
    chosen = [...chosen].sort((a, b) => {
      const [x, y] = [a[sort] ?? null, b[sort] ?? null];
      if (x === null || y === null) return Number(x === null) - Number(y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * (query.order === "down" ? -1 : 1);
    });
  else if (query.order === "down") chosen = [...chosen].reverse();
  const start = Number(query.start ?? 0);
  return { generation: dataset.generation, total: chosen.length, start, rows: chosen.slice(start, start + Number(query.count ?? 100)), live: [] };
}

/** How values lie in all episodes: a site knows no other selection of them. */
async function distribution(signal: string): Promise<unknown> {
  const found = (await opened()).distributions[signal];
  if (!found) throw new Refused(404, `nothing is known of the values of ${signal}`, "");
  return found;
}

export async function siteJson(name: string, query: Query): Promise<unknown> {
  const id = String(query.episode);
  switch (name) {
    case "session": return { write_token: "" };
    case "dataset": return (await opened()).dataset;
    case "episodes": return episodes(query);
    case "statistics": return statisticsOf(await selected(query));
    case "distribution": return distribution(String(query.signal));
    case "checks": return (await opened()).checks;
    case "history": return { edits: [], dropped: [] };
    case "episode": return (await fileOf(id)).episode;
    case "events": return (await fileOf(id)).events;
    case "errors": return (await fileOf(id)).errors;
    case "at": return at(query);
  }
  throw new Refused(404, "an exported site can only be read", "");
}

export async function siteArrays(name: string, query: Query): Promise<Framed> {
  if (name === "points") return points(query);
  if (name === "thumbnail") {
    const id = String(query.episode);
    return unframe(await bytes(id, ...(await fileOf(id)).thumbnail));
  }
  const { stored, id } = await signalOf(query);
  const row = Number(query.row);
  if (name === "times") return { head: {}, arrays: { times: { data: await rows(id, stored.times!, 0, stored.times!.shape[0]!), shape: stored.times!.shape } } };
  if (name === "packets") {
    const group = stored.groups?.find((each) => row >= each[2] && row <= each[3]);
    if (group) return unframe(await bytes(id, group[0], group[1]));
    if (!stored.video) return { head: { codec: null }, arrays: {} };
    const { packets } = stored.video;
    return blobPackets(await blobUrl(id, stored.video.blob), stored.video, await rows(id, packets, 0, packets.shape[0]!), row, query.needed === 1);
  }
  if (stored.rows) return blobFrame(await blobUrl(id, stored.rows.blob), stored.rows, row, stored.limits ?? null);
  const frame = stored.frames?.[row];
  if (!frame) throw new Refused(415, "this browser cannot decode the camera, and an exported site cannot do it for it", "Open it with `warp view`.");
  const packed = new Blob([await bytes(id, ...frame)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(packed).arrayBuffer());
  return { head: {}, arrays: { pixels: { data, shape: stored.shape! } } };
}
