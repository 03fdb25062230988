/** The seek table at the end of a block of several zstd frames. */
import { viewOf } from "./bytes.js";
import { corrupt } from "./errors.js";
import { MAX_FRAMES, SEEK_TABLE_MAGIC, SKIPPABLE_MAGIC } from "./layout.js";

export const FOOTER_BYTES = 9;

/** Where each frame starts, stored and raw; both have one entry more than there are frames. */
export interface SeekTable {
  stored: Float64Array;
  raw: Float64Array;
}

/** The size of the whole seek table, from the last nine bytes of a block. */
export function seekTableBytes(footer: Uint8Array): number {
  const missing = () => corrupt("no seek table");
  if (footer.length < FOOTER_BYTES) missing();
  const fields = viewOf(footer);
  const count = fields.getUint32(0, true);
  const descriptor = fields.getUint8(4);
  if (fields.getUint32(5, true) !== SEEK_TABLE_MAGIC || descriptor & 0x7c) {
    missing();
  }
  if (count > MAX_FRAMES) corrupt(`too large: seek table of ${count} frames`);
  return 8 + count * (descriptor & 0x80 ? 12 : 8) + FOOTER_BYTES;
}

/** Read a seek table and check that its frames are exactly as large as the block. */
export function unpackSeekTable(table: Uint8Array, diskSize: number, rawSize: number): SeekTable {
  const fields = viewOf(table);
  const entry = table[table.length - 5]! & 0x80 ? 12 : 8;
  const isFrame = fields.getUint32(0, true) === SKIPPABLE_MAGIC && fields.getUint32(4, true) === table.length - 8;
  const count = (table.length - 8 - FOOTER_BYTES) / entry;
  const stored = new Float64Array(count + 1);
  const raw = new Float64Array(count + 1);
  for (let i = 0; i < count; i++) {
    stored[i + 1] = stored[i]! + fields.getUint32(8 + i * entry, true);
    raw[i + 1] = raw[i]! + fields.getUint32(12 + i * entry, true);
  }
  if (!isFrame || stored[count] !== diskSize - table.length || raw[count] !== rawSize) corrupt("damaged seek table");
  return { stored, raw };
}

/** The half-open range of frames that hold the raw bytes [start, end). */
export function framesFor(table: SeekTable, start: number, end: number): [number, number] {
  const first = firstAbove(table.raw, start) - 1;
  let last = firstAbove(table.raw, end - 1);
  last = Math.min(last, table.raw.length - 1);
  return [first, Math.max(first, last)];
}

/** The index of the first value above `limit` in an ascending list. */
function firstAbove(values: Float64Array, limit: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}
