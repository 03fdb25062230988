/** Decompression, bounded before anything is allocated. The door of fzstd, which checks no frame checksum: we do. */
import { Decompress, decompress } from "fzstd";
import { sum, viewOf } from "./bytes.js";
import { xxh64 } from "./checksum.js";
import { corrupt, FormatError, LimitExceededError } from "./errors.js";
import { MAX_EXPANDED_BYTES, MAX_LARGE_RATIO } from "./layout.js";

export type Codec = "none" | "zstd" | "lz4";

const MAX_RATIO = { zstd: 2 ** 15, lz4: 255 };
const MAX_WINDOW_BYTES = 1 << 25;
const MAX_ZSTD_BLOCK = 128 << 10;
const ZSTD_MAGIC = 0xfd2fb528;

/** The decompressed bytes of a block, exactly `rawSize` of them. */
export function decode(codec: Codec, data: Uint8Array, rawSize: number): Uint8Array {
  if (codec === "zstd") return decodeZstd(data, rawSize);
  if (codec === "lz4") return decodeLz4(data, rawSize);
  return data;
}

/** Memory for what a block expands to; a claim beyond the limits of the format is refused before that. */
function allocate(codec: "zstd" | "lz4", stored: number, rawSize: number): Uint8Array {
  const largest = Math.max(MAX_EXPANDED_BYTES, stored * MAX_LARGE_RATIO);
  if (rawSize <= stored * MAX_RATIO[codec] && rawSize <= largest) {
    try {
      return new Uint8Array(rawSize);
    } catch {} // more than this machine gives
  }
  throw new LimitExceededError(`too large: ${stored} ${codec} bytes expand to ${rawSize}`);
}

function damaged(why: string): never {
  corrupt(`damaged zstd frame (${why})`);
}

interface Frame {
  /** Bytes it holds, or undefined where it does not say. */
  size: number | undefined;
  hasChecksum: boolean;
  isSkippable: boolean;
  windowBytes: number;
  /** Where it ends. */
  end: number;
}

function readFrame(data: Uint8Array, start: number): Frame {
  const view = viewOf(data);
  try {
    const magic = view.getUint32(start, true);
    if ((magic & 0xfffffff0) >>> 0 === 0x184d2a50) {
      const end = start + 8 + view.getUint32(start + 4, true);
      if (end > data.length) throw new RangeError();
      return { size: 0, hasChecksum: false, isSkippable: true, windowBytes: 0, end };
    }
    if (magic !== ZSTD_MAGIC) corrupt("not a zstd frame");
    const flags = view.getUint8(start + 4);
    const isSingle = (flags & 0x20) !== 0;
    let at = start + 5;
    let windowBytes = 0;
    if (!isSingle) {
      const byte = view.getUint8(at++);
      const base = 2 ** (10 + (byte >> 3));
      windowBytes = base + (base / 8) * (byte & 7);
    }
    at += [0, 1, 2, 4][flags & 3]!;
    let size: number | undefined;
    const kind = flags >> 6;
    if (kind === 0 && isSingle) size = view.getUint8(at++);
    else if (kind === 1) size = view.getUint16(at, true) + 256;
    else if (kind === 2) size = view.getUint32(at, true);
    else if (kind === 3) size = Number(view.getBigUint64(at, true));
    if (kind) at += 1 << kind;
    const limit = Math.min(MAX_ZSTD_BLOCK, isSingle ? (size ?? 0) : windowBytes);
    for (let isLast = false; !isLast; ) {
      const header = view.getUint16(at, true) | (view.getUint8(at + 2) << 16);
      isLast = (header & 1) !== 0;
      const type = (header >> 1) & 3;
      if (type === 3 || header >> 3 > limit) damaged("a block's header");
      at += 3 + (type === 1 ? 1 : header >> 3);
      if (at > data.length) throw new RangeError();
    }
    const hasChecksum = (flags & 4) !== 0;
    const end = at + (hasChecksum ? 4 : 0);
    if (flags & 0x08 || end > data.length) throw new RangeError();
    return { size, hasChecksum, isSkippable: false, windowBytes: isSingle ? (size ?? 0) : windowBytes, end };
  } catch (error) {
    if (error instanceof FormatError) throw error;
    damaged("it ends too early");
  }
}

function fill(data: Uint8Array, frame: Frame, out: Uint8Array): number {
  let written = 0;
  try {
    if (frame.size !== undefined) {
      if (frame.size) decompress(data, out.subarray(0, frame.size));
      written = frame.size;
    } else {
      const stream = new Decompress((part) => {
        if (written + part.length > out.length) damaged("it holds too much");
        out.set(part, written);
        written += part.length;
      });
      stream.push(data, true);
    }
  } catch (error) {
    if (error instanceof FormatError) throw error;
    damaged((error as Error).message);
  }
  if (frame.hasChecksum) {
    const stored = viewOf(data).getUint32(data.length - 4, true);
    if (Number(xxh64(out.subarray(0, written)) & 0xffffffffn) !== stored) {
      damaged("checksum mismatch");
    }
  }
  return written;
}

function decodeZstd(data: Uint8Array, rawSize: number): Uint8Array {
  const out = allocate("zstd", data.length, rawSize);
  const first = readFrame(data, 0);
  if ((first.size ?? 0) > rawSize) {
    throw new LimitExceededError(`expected ${rawSize} bytes, got ${first.size}`);
  }
  if (first.size === rawSize && first.end !== data.length) {
    damaged("more bytes than the frame has");
  }
  let filled = 0;
  for (let at = 0; at < data.length; ) {
    const frame = at ? readFrame(data, at) : first;
    if (!frame.isSkippable) {
      if ((frame.size ?? 0) > rawSize - filled) damaged("it holds too much");
      if (frame.size === undefined && frame.windowBytes > MAX_WINDOW_BYTES) {
        damaged("its window is too large");
      }
      filled += fill(data.subarray(at, frame.end), frame, out.subarray(filled));
    }
    at = frame.end;
  }
  if (filled !== rawSize) corrupt(`expected ${rawSize} bytes, got ${filled}`);
  return out;
}

/** Neighbouring frames that end at these offsets and must hold exactly these sizes, joined. */
export function decodeFrames(data: Uint8Array, ends: number[], sizes: number[]): Uint8Array {
  const out = allocate("zstd", data.length, sum(sizes));
  let start = 0;
  let filled = 0;
  for (const [index, end] of ends.entries()) {
    const part = data.subarray(start, end);
    const frame = readFrame(part, 0);
    const size = sizes[index]!;
    // Nothing but its checksum vouches for a frame that is read alone.
    if (!frame.hasChecksum || frame.size !== size || frame.end !== part.length) {
      corrupt(`expected a frame of ${size} bytes with a checksum`);
    }
    filled += fill(part, frame, out.subarray(filled));
    start = end;
  }
  return out;
}

function decodeLz4(data: Uint8Array, rawSize: number): Uint8Array {
  const out = allocate("lz4", data.length, rawSize);
  const size = data.length;
  let at = 0;
  let filled = 0;
  const bad = (): never => corrupt("damaged LZ4 block");
  const length = (start: number): number => {
    let total = start;
    if (start === 15) {
      for (let byte = 255; byte === 255; total += byte) byte = at < size ? data[at++]! : bad();
    }
    return total;
  };
  while (at < size) {
    const token = data[at++]!;
    const literals = length(token >> 4);
    if (literals > size - at || literals > rawSize - filled) bad();
    out.set(data.subarray(at, at + literals), filled);
    at += literals;
    filled += literals;
    if (at === size) break;
    if (size - at < 2) bad();
    const offset = data[at]! | (data[at + 1]! << 8);
    at += 2;
    const match = length(token & 15) + 4;
    if (!offset || offset > filled || match > rawSize - filled) bad();
    // Byte by byte: a match may overlap what it makes.
    for (const end = filled + match; filled < end; filled++) out[filled] = out[filled - offset]!;
    if (at === size) bad(); // a block ends with literals
  }
  if (filled !== rawSize) corrupt(`expected ${rawSize} bytes, got ${filled}`);
  return out;
}
