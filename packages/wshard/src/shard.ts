/** Blocks, and ranges of blocks, of one shard; every byte handed out was held against a checksum. */
import { checkRange, viewOf } from "./bytes.js";
import { crc32c } from "./checksum.js";
import { decode, decodeFrames } from "./codec.js";
import { about, ChecksumError, corrupt, FormatError, NotFoundError } from "./errors.js";
import { type JsonObject, parseJsonObject } from "./json.js";
import * as layout from "./layout.js";
import { FOOTER_BYTES, framesFor, type SeekTable, seekTableBytes, unpackSeekTable } from "./seekable.js";
import type { Source } from "./source.js";
import { type Block, type Header, parseTable, unpackHeader } from "./table.js";

export interface OpenOptions {
  /**
   * What is held against a checksum before it is handed out. `"block"`: every byte; a window of a large raw block
   * without checksums for windows (files of other programs) costs one reading of the whole block. `"window"`: such a
   * window is read alone and unchecked.
   */
  verify?: "block" | "window";
  /** Bytes of the first read, which usually holds all metadata. */
  headBytes?: number;
  /** Bytes of decompressed blocks to keep, so that the next window of one costs nothing. */
  keepBytes?: number;
}

const HEAD_BYTES = 64 << 10;
const KEEP_BYTES = 64 << 20;
const STEP_BYTES = 8 << 20;

interface Pieces {
  rows: number;
  checksums: Uint32Array;
  isChecked: Uint8Array;
}

/** An open shard: its table was read and checked, its blocks are read when asked for. */
export class Shard {
  readonly #source: Source;
  readonly #head: Uint8Array;
  readonly #options: OpenOptions;
  readonly #kept = new Map<string, Promise<Uint8Array>>();
  readonly #verified = new Set<string>();
  readonly #pieces = new Map<string, Promise<Pieces>>();
  readonly #seekTables = new Map<string, Promise<SeekTable>>();
  readonly blocks: ReadonlyMap<string, Block>;
  /** What kind of shard this is: 5 an episode, 4 a chunk list. */
  readonly role: number;
  /** Whether header and table carry a checksum; else only structure and name hashes were checked. */
  readonly isChecksummed: boolean;

  private constructor(source: Source, head: Uint8Array, header: Header, size: number, options: OpenOptions) {
    this.#source = source;
    this.#head = head;
    this.#options = options;
    this.role = header.role;
    [this.blocks, this.isChecksummed] = parseTable(header, head, size);
  }

  /** Open a shard: one read, or two where its table is larger than most. */
  static async open(source: Source, options: OpenOptions = {}): Promise<Shard> {
    const size = await source.size();
    const start = await source.read(0, Math.min(size, Math.max(options.headBytes ?? HEAD_BYTES, layout.HEADER_BYTES)));
    const header = unpackHeader(start, size);
    const head = header.dataOffset <= start.length ? start : await source.read(0, header.dataOffset);
    return new Shard(source, head, header, size, options);
  }

  get source(): Source {
    return this.#source;
  }

  get names(): string[] {
    return [...this.blocks.keys()];
  }

  has(name: string): boolean {
    return this.blocks.has(name);
  }

  block(name: string): Block {
    const found = this.blocks.get(name);
    if (!found) throw new NotFoundError("no such block", name);
    return found;
  }

  /** The decompressed, verified bytes of a block; not to be changed. */
  async read(name: string): Promise<Uint8Array> {
    const block = this.block(name);
    const kept = this.#kept.get(name);
    if (kept) {
      this.#kept.delete(name); // the one used last is the last to go
      this.#kept.set(name, kept);
      return kept;
    }
    const reading = this.#readWhole(block);
    this.#keep(name, block.rawSize, reading);
    return reading;
  }

  async #readWhole(block: Block): Promise<Uint8Array> {
    let data: Uint8Array;
    if (block.isSeekable) data = await this.#readFrames(block, 0, block.rawSize);
    else {
      const stored = await this.#stored(block, 0, block.diskSize);
      if (block.codec === "none") data = stored;
      else data = about(block.name, () => decode(block.codec, stored, block.rawSize));
    }
    this.#settle(block, crc32c(data));
    return data;
  }

  /** Remember that a block was held against its checksum, which must be this one. */
  #settle(block: Block, checksum: number): void {
    if (checksum !== block.crc32c) throw new ChecksumError("checksum mismatch", block.name);
    this.#verified.add(block.name);
  }

  #keep(name: string, size: number, reading: Promise<Uint8Array>): void {
    const most = this.#options.keepBytes ?? KEEP_BYTES;
    if (size > most) return;
    this.#kept.set(name, reading);
    reading.catch(() => this.#kept.delete(name));
    let total = 0;
    for (const each of [...this.#kept.keys()].reverse()) {
      total += this.block(each).rawSize;
      if (total > most) this.#kept.delete(each);
    }
  }

  /** A block that holds a JSON object. */
  async readJson(name: string): Promise<JsonObject> {
    const data = await this.read(name);
    return about(name, () => parseJsonObject(data));
  }

  /**
   * Bytes [start, end) of the decompressed block, reading and verifying as little as holds them. `rowBytes` is what one
   * row of the block has: its checksums are of whole rows.
   */
  async readRange(name: string, start: number, end: number, rowBytes = 1): Promise<Uint8Array> {
    const block = this.block(name);
    checkRange(start, end, block.rawSize, `bytes of block '${name}'`);
    if (start === end) return new Uint8Array(0);
    if (block.isSeekable && !this.#kept.has(name)) return this.#readFrames(block, start, end);
    if (block.codec !== "none" || block.rawSize <= layout.PIECES_FROM_BYTES || this.#kept.has(name)) {
      return (await this.read(name)).subarray(start, end);
    }
    if (this.#verified.has(name)) return this.#stored(block, start, end);
    if (this.has(layout.PIECES_PREFIX + name)) return this.#readPieces(block, start, end, rowBytes);
    if (this.#options.verify === "window") return this.#stored(block, start, end);
    if (block.rawSize <= (this.#options.keepBytes ?? KEEP_BYTES)) return (await this.read(name)).subarray(start, end);
    await this.#checkUnread(block);
    return this.#stored(block, start, end);
  }

  async #checkUnread(block: Block): Promise<void> {
    let checksum = 0;
    for (let at = 0; at < block.diskSize; at += STEP_BYTES) {
      checksum = crc32c(await this.#stored(block, at, Math.min(at + STEP_BYTES, block.diskSize)), checksum);
    }
    this.#settle(block, checksum);
  }

  async #readPieces(block: Block, start: number, end: number, rowBytes: number): Promise<Uint8Array> {
    const pieces = await this.#once(this.#pieces, block.name, async () => {
      const name = layout.PIECES_PREFIX + block.name;
      const data = await this.read(name);
      return about(name, () => unpackPieces(data));
    });
    const size = pieces.rows * rowBytes;
    const first = Math.floor(start / size);
    const last = Math.ceil(end / size);
    if (last > pieces.checksums.length) {
      corrupt("has fewer piece checksums than pieces", block.name);
    }
    if (pieces.isChecked.subarray(first, last).every((each) => each === 1)) return this.#stored(block, start, end);
    const low = first * size;
    const data = await this.#stored(block, low, Math.min(last * size, block.rawSize));
    for (let index = first; index < last; index++) {
      const piece = data.subarray(index * size - low, (index + 1) * size - low);
      if (crc32c(piece) !== pieces.checksums[index]) {
        throw new ChecksumError("checksum mismatch", block.name);
      }
      pieces.isChecked[index] = 1;
    }
    return data.subarray(start - low, end - low);
  }

  async #readFrames(block: Block, start: number, end: number): Promise<Uint8Array> {
    const table = await this.#once(this.#seekTables, block.name, () => this.#readSeekTable(block));
    const [first, last] = framesFor(table, start, end);
    if (first >= last) return new Uint8Array(0);
    const base = table.stored[first]!;
    const stored = await this.#stored(block, base, table.stored[last]!);
    const ends = Array.from(table.stored.subarray(first + 1, last + 1), (each) => each - base);
    const sizes = ends.map((_, index) => table.raw[first + index + 1]! - table.raw[first + index]!);
    const data = about(block.name, () => decodeFrames(stored, ends, sizes));
    const skip = start - table.raw[first]!;
    return data.subarray(skip, skip + end - start);
  }

  async #readSeekTable(block: Block): Promise<SeekTable> {
    const size = block.diskSize;
    const ahead = layout.SEEK_PREFIX + block.name;
    if (this.has(ahead)) {
      try {
        const table = await this.read(ahead);
        if (seekTableBytes(table.subarray(-FOOTER_BYTES)) === table.length) {
          return unpackSeekTable(table, size, block.rawSize);
        }
      } catch (error) {
        if (!(error instanceof FormatError)) throw error; // else the block has its own
      }
    }
    // One read for most: so many frames hold at least 60 MB.
    const guess = Math.min(size, 8 << 10);
    const tail = await this.#stored(block, size - guess, size);
    const length = about(block.name, () => seekTableBytes(tail.subarray(Math.max(0, guess - FOOTER_BYTES))));
    if (length > size) corrupt("damaged seek table", block.name);
    const table = length <= guess ? tail.subarray(guess - length) : await this.#stored(block, size - length, size);
    return about(block.name, () => unpackSeekTable(table, size, block.rawSize));
  }

  async #once<T>(kept: Map<string, Promise<T>>, name: string, read: () => Promise<T>): Promise<T> {
    let found = kept.get(name);
    if (!found) {
      found = read();
      kept.set(name, found);
      found.catch(() => kept.delete(name));
    }
    return found;
  }

  async #stored(block: Block, start: number, end: number): Promise<Uint8Array> {
    const low = block.dataOffset + start;
    const high = block.dataOffset + end;
    if (high <= this.#head.length) return this.#head.subarray(low, high);
    return low === high ? new Uint8Array(0) : this.#source.read(low, high);
  }
}

function unpackPieces(data: Uint8Array): Pieces {
  const view = viewOf(data);
  const rows = data.length < 4 || data.length % 4 ? 0 : view.getUint32(0, true);
  if (rows === 0) corrupt("damaged piece checksums");
  const checksums = new Uint32Array(data.length / 4 - 1);
  for (let i = 0; i < checksums.length; i++) checksums[i] = view.getUint32(4 + 4 * i, true);
  return { rows, checksums, isChecked: new Uint8Array(checksums.length) };
}
