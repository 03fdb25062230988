import { corrupt } from "./errors.js";

/** All of them added up. */
export function sum(values: readonly number[]): number {
  return values.reduce((total, each) => total + each, 0);
}

/** Parts of bytes as one; a part alone is not copied. */
export function joinBytes(parts: Uint8Array[]): Uint8Array {
  if (parts.length === 1) return parts[0]!;
  const out = new Uint8Array(sum(parts.map((each) => each.length)));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** The numbers in some bytes. */
export function viewOf(data: Uint8Array): DataView {
  return new DataView(data.buffer, data.byteOffset, data.byteLength);
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as text; what is not UTF-8 is damage. */
export function utf8(data: Uint8Array, what: string): string {
  try {
    return UTF8.decode(data);
  } catch {
    return corrupt(what);
  }
}

/** Raise unless [start, end) lies within what there is. */
export function checkRange(start: number, end: number, total: number, what: string): void {
  if (!(start >= 0 && start <= end && end <= total)) throw new RangeError(`[${start}, ${end}) of ${total} ${what}`);
}
