/** The block table: parsed and checked. Nothing here reads the data of a block. */
import { utf8, viewOf } from "./bytes.js";
import { crc32c, fnv1a64, xxh64 } from "./checksum.js";
import type { Codec } from "./codec.js";
import {
  BadMagicError,
  ChecksumError,
  CorruptLayoutError,
  corrupt,
  LimitExceededError,
  TruncatedError,
  UnsupportedVersionError,
} from "./errors.js";
import * as layout from "./layout.js";

const SALVAGE = "Run `warp salvage` if a recorder wrote it, else restore a copy.";

/** Where one named block lies and how it is stored. */
export interface Block {
  readonly name: string;
  readonly codec: Codec;
  readonly isSeekable: boolean;
  readonly dataOffset: number;
  readonly diskSize: number;
  readonly rawSize: number;
  readonly crc32c: number;
  readonly contentType: number;
}

export interface Header {
  readonly role: number;
  readonly defaultCodec: Codec;
  readonly namesOffset: number;
  readonly dataOffset: number;
}

function u64(view: DataView, at: number): number {
  return view.getUint32(at + 4, true) * 2 ** 32 + view.getUint32(at, true);
}

function ascii(data: Uint8Array, start: number, end: number): string {
  return String.fromCharCode(...data.subarray(start, end));
}

/** The header, with everything checked that needs no other byte. `start` is the file's first bytes, 64 or more. */
export function unpackHeader(start: Uint8Array, size: number): Header {
  const magic = ascii(start, 0, 4);
  if (!layout.MAGIC.startsWith(magic)) throw new BadMagicError("not a shard: expected SHRD");
  if (start.length < layout.HEADER_BYTES) {
    throw new TruncatedError(`too short for a shard: ${size} bytes`);
  }
  const view = viewOf(start);
  const version = view.getUint8(4);
  if (version !== layout.VERSION) throw new UnsupportedVersionError(`shard version ${version} is not known`);
  const entryBytes = view.getUint16(10, true);
  if (entryBytes !== layout.ENTRY_BYTES) corrupt(`table entries of ${entryBytes} bytes`);
  const entryCount = view.getUint32(12, true);
  if (entryCount > layout.MAX_ENTRIES) {
    throw new LimitExceededError(`${entryCount} blocks are too many`);
  }
  const alignment = view.getUint8(8);
  if (!layout.ALIGNMENTS.includes(alignment)) {
    corrupt(`alignment ${alignment}`);
  }
  const namesOffset = u64(view, 16);
  if (namesOffset !== layout.HEADER_BYTES + layout.ENTRY_BYTES * entryCount) {
    corrupt("invalid offset of names", undefined, SALVAGE);
  }
  const dataOffset = u64(view, 24);
  if (dataOffset < namesOffset) corrupt("the data begins before the names");
  if (dataOffset - namesOffset > layout.MAX_STRING_TABLE_BYTES) {
    throw new LimitExceededError(`too large: ${dataOffset - namesOffset} bytes of names`);
  }
  const total = u64(view, 40);
  if (total !== size) {
    const kind = size < total ? TruncatedError : CorruptLayoutError;
    throw new kind(`expected a file of ${total} bytes, got ${size}`);
  }
  if (dataOffset > size) throw new TruncatedError("the file ends inside its block table");
  const codecs: Codec[] = ["none", "zstd", "lz4"];
  return {
    role: view.getUint8(5),
    defaultCodec: codecs[view.getUint8(9)] ?? "none",
    namesOffset,
    dataOffset,
  };
}

/** The blocks of a shard out of its first `dataOffset` bytes, and whether header and table carry a checksum. */
export function parseTable(header: Header, head: Uint8Array, size: number): [Map<string, Block>, boolean] {
  const isChecksummed = checkMark(head, header.dataOffset);
  const names = head.subarray(header.namesOffset, header.dataOffset);
  const view = viewOf(head);
  const blocks = new Map<string, Block>();
  for (let at = layout.HEADER_BYTES; at < header.namesOffset; at += layout.ENTRY_BYTES) {
    const block = unpackEntry(view, at, names, header.defaultCodec, isChecksummed);
    if (blocks.has(block.name)) corrupt("two blocks have this name", block.name);
    blocks.set(block.name, block);
  }
  checkRanges(blocks, header.dataOffset, size);
  return [blocks, isChecksummed];
}

/** A file without our table checksum has zeros there; anything else is damage. */
function checkMark(head: Uint8Array, end: number): boolean {
  const view = viewOf(head);
  if (u64(view, 56) !== 0) corrupt("reserved header bytes are not zero");
  const stored = view.getUint32(52, true);
  if (view.getUint32(48, true) === 0 && stored === 0) return false;
  if (ascii(head, 48, 52) !== layout.MARK) {
    corrupt("the mark of the checksum is damaged");
  }
  if (tableCrc32c(head.subarray(0, end)) !== stored) {
    throw new ChecksumError("checksum mismatch");
  }
  return true;
}

/** The checksum over the first 48 header bytes, the table and the names with their padding. */
export function tableCrc32c(head: Uint8Array): number {
  return crc32c(head.subarray(layout.HEADER_BYTES), crc32c(head.subarray(0, layout.MARKED_HEADER_BYTES)));
}

function unpackEntry(view: DataView, at: number, names: Uint8Array, byDefault: Codec, isTrusted: boolean): Block {
  const nameOffset = view.getUint32(at + 8, true);
  const nameBytes = view.getUint16(at + 12, true);
  const raw = names.subarray(nameOffset, nameOffset + nameBytes);
  if (raw.length !== nameBytes) corrupt("a block name outside the names");
  const name = checkedName(raw);
  if (!isTrusted) {
    const hash = view.getBigUint64(at, true);
    if (hash !== xxh64(raw) && hash !== fnv1a64(raw)) corrupt("the hash of the name is wrong", name);
  }
  const diskSize = u64(view, at + 24);
  const rawSize = u64(view, at + 32);
  if (Math.max(diskSize, rawSize) > layout.MAX_BLOCK_BYTES) {
    throw new LimitExceededError(`too large: ${Math.max(diskSize, rawSize)} bytes`, name);
  }
  const flags = view.getUint16(at + 14, true);
  const codec = codecOf(flags, byDefault, diskSize === rawSize, name);
  if (codec === "none" && diskSize !== rawSize) {
    corrupt("stored raw, but its two sizes differ", name);
  }
  return {
    name,
    codec,
    isSeekable: flags === layout.FLAGS_SEEKABLE,
    dataOffset: u64(view, at + 16),
    diskSize,
    rawSize,
    crc32c: view.getUint32(at + 40, true),
    contentType: view.getUint16(at + 44, true),
  };
}

function codecOf(flags: number, byDefault: Codec, isSameSize: boolean, name: string): Codec {
  switch (flags) {
    case layout.FLAGS_RAW:
      return "none";
    case layout.FLAGS_ZSTD:
    case layout.FLAGS_SEEKABLE:
      return "zstd";
    case layout.FLAGS_LZ4:
      return "lz4";
    case layout.FLAGS_DEFAULT: // two existing writers set only this bit, even where the block is raw
      return isSameSize ? "none" : byDefault;
    default:
      corrupt(`unknown storage flags ${flags}`, name);
  }
}

/** The name in these bytes, or the error that says why they are none. */
export function checkedName(raw: Uint8Array): string {
  if (raw.length > layout.MAX_NAME_BYTES || raw.length === 0) {
    throw new LimitExceededError(`a block name of ${raw.length} bytes`);
  }
  const name = utf8(raw, "the name of a block is not UTF-8");
  if (name.includes("\0")) corrupt("holds a NUL byte", name);
  return name;
}

/** Blocks share no byte with each other or the table; their order in the table means nothing. */
function checkRanges(blocks: Map<string, Block>, start: number, size: number): void {
  let position = start;
  for (const block of [...blocks.values()].sort((a, b) => a.dataOffset - b.dataOffset)) {
    if (!block.diskSize) continue;
    if (block.dataOffset < position) corrupt("overlaps what is before it", block.name, SALVAGE);
    position = block.dataOffset + block.diskSize;
    if (position > size) throw new TruncatedError("lies past the end of the file", block.name);
  }
}
