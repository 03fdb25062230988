// Published blobs, read where they lie by the package wshard: only ranges, every byte held against its checksum.
import { crc32c } from "../../packages/wshard/src/checksum.js";
import { type DType, DTYPES, fromUrl, Shard, toFloat32, typedArray, WShardError } from "../../packages/wshard/src/index.js";
import { joinBytes } from "../../packages/wshard/src/bytes.js";
import { type Framed, Refused, type Typed } from "./wire";

/** Rows of one or two blocks of a blob; the first side of `shape` is how many. */
export interface BlobPlace {
  blob: number;
  parts: [block: string, rows: number][];
  dtype: DType;
  shape: number[];
  is_time?: boolean;
}

/** A video in a blob, and how browsers decode it. */
export interface BlobVideo {
  blob: number;
  block: string;
  codec: string;
  description: string;
  coded: [number, number];
}

const shards = new Map<string, Promise<Shard>>();

async function opened(url: string): Promise<Shard> {
  let found = shards.get(url);
  if (!found) {
    found = Shard.open(fromUrl(url));
    shards.set(url, found);
    found.catch(() => shards.delete(url));
  }
  return found;
}

/** What went wrong with a blob, as the page says it. */
async function told<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof WShardError) throw new Refused(0, error.message, error.hint);
    throw error;
  }
}

async function bytesOf(url: string, place: BlobPlace, from: number, to: number): Promise<Uint8Array> {
  const shard = await opened(url);
  const row = place.shape.slice(1).reduce((size, side) => size * side, DTYPES[place.dtype]);
  const parts: Promise<Uint8Array>[] = [];
  let first = 0;
  for (const [block, count] of place.parts) {
    const [low, high] = [Math.max(from - first, 0), Math.min(to - first, count)];
    if (low < high) parts.push(shard.readRange(block, low * row, high * row, row));
    first += count;
  }
  return joinBytes(await Promise.all(parts));
}

function numbers(dtype: DType, data: Uint8Array): Typed {
  if (dtype === "f16" || dtype === "bf16") return toFloat32(dtype, data);
  const values = typedArray(dtype, data);
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) return Float64Array.from(values, Number);
  return values as Typed;
}

/** Rows [from, to); times come as nanoseconds since `start`. */
export function blobRows(url: string, place: BlobPlace, from: number, to: number, start: bigint): Promise<Typed> {
  return told(async () => {
    const data = await bytesOf(url, place, from, to);
    if (!place.is_time) return numbers(place.dtype, data);
    return Float64Array.from(typedArray("i64", data) as BigInt64Array, (each) => Number(each - start));
  });
}

/** One frame of a camera that is stored as numbers, as pixels. */
export function blobFrame(url: string, place: BlobPlace, row: number, limits: [number, number] | null): Promise<Framed> {
  return told(async () => {
    const values = numbers(place.dtype, await bytesOf(url, place, row, row + 1));
    const [a = 1, b = 1, c] = place.shape.slice(1);
    const planesFirst = c !== undefined && ![1, 3, 4].includes(c);
    const [height, width, colours] = planesFirst ? [b, c, a] : [a, b, c ?? 1];
    const shown = colours === 1 ? 1 : 3;
    const data = new Uint8ClampedArray(height * width * shown);
    const [low, scale] = limits ? [limits[0], 255 / (limits[1] - limits[0])] : [0, 1];
    for (let pixel = 0; pixel < height * width; pixel++)
      for (let colour = 0; colour < shown; colour++) {
        const value = values[planesFirst ? colour * height * width + pixel : pixel * colours + colour]!;
        data[pixel * shown + colour] = Math.trunc((value - low) * scale); // what is no number is black
      }
    return { head: {}, arrays: { pixels: { data: new Uint8Array(data.buffer), shape: [height, width, shown] } } };
  });
}

/** The encoded frames around one, or those that it takes, as a server would send them. `packets`: offset, size, checksum, record, first packet. */
export function blobPackets(url: string, video: BlobVideo, packets: Typed, row: number, onlyNeeded: boolean): Promise<Framed> {
  return told(async () => {
    const shard = await opened(url);
    const count = packets.length / 5;
    const at = (packet: number, column: number): number => packets[packet * 5 + column]!;
    let wanted = 0;
    while (wanted < count && at(wanted, 3) !== row) wanted++;
    if (wanted === count) return { head: { codec: null }, arrays: {} };
    const first = at(wanted, 4);
    let last = wanted;
    for (let packet = wanted + 1; !onlyNeeded && packet < count && at(packet, 4) === first; packet++) last = packet;
    const group = Array.from({ length: last - first + 1 }, (_, index) => first + index);
    const low = Math.min(...group.map((each) => at(each, 0)));
    const high = Math.max(...group.map((each) => at(each, 0) + at(each, 1)));
    const { dataOffset } = shard.block(video.block);
    const data = await shard.source.read(dataOffset + low, dataOffset + high);
    const parts = group.map((each) => data.subarray(at(each, 0) - low, at(each, 0) - low + at(each, 1)));
    parts.forEach((part, index) => {
      if (crc32c(part) !== at(group[index]!, 2)) throw new Refused(0, `a frame of ${video.block} does not match its checksum`, "Restore the blob from another copy.");
    });
    const head = { codec: video.codec, description: video.description, coded: video.coded, rows: group.map((each) => at(each, 3)), sizes: parts.map((part) => part.length) };
    return { head, arrays: { data: { data: joinBytes(parts).slice(), shape: [high - low] } } };
  });
}
