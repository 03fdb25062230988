/** Rows where they lie: in one block, as texts, or in several places one after the other. */
import { joinBytes, sum, utf8 } from "./bytes.js";
import { type DType, typedArray } from "./dtype.js";
import { about, corrupt } from "./errors.js";
import { type Json, parseJson } from "./json.js";
import type { TensorSpec } from "./schema.js";
import type { Shard } from "./shard.js";

/** Rows of numbers, or texts, where they lie. */
export interface RowSource {
  readonly dtype: DType | "text" | "json";
  /** The shape of one row. */
  readonly shape: readonly number[];
  readonly length: number;
  /** The bytes of rows [start, end): numbers in C order, texts joined as UTF-8. */
  bytes(start: number, end: number): Promise<Uint8Array>;
  /** Values [start, end) of a text or JSON channel. */
  texts?(start: number, end: number): Promise<Json[]>;
}

/** The rows of one block. */
export function blockRows(shard: Shard, block: string, spec: TensorSpec, length: number): RowSource {
  const { dtype, shape, rowBytes } = spec;
  const bytes = (start: number, end: number) =>
    shard.readRange(block, start * rowBytes, end * rowBytes, Math.max(1, rowBytes));
  return { dtype, shape, length, bytes };
}

/** Texts, or JSON, one behind the other in one block, and where each ends in another. */
export function textRows(dtype: "text" | "json", data: RowSource, ends: RowSource, block: string): RowSource {
  const { length } = ends;
  /** Where value `start` begins, then where each value of [start, end) ends. */
  const boundsOf = async (start: number, end: number): Promise<number[]> => {
    if (start === end) return [0];
    const known = Array.from(typedArray("i64", await ends.bytes(Math.max(0, start - 1), end)) as BigInt64Array, Number);
    const bounds = start ? known : [0, ...known];
    const last = bounds.at(-1)!;
    const isOrdered = bounds.every((each, index) => each >= (index ? bounds[index - 1]! : 0));
    if (!isOrdered || last > data.length || (end === length && last !== data.length)) {
      corrupt("invalid ends", block);
    }
    return bounds;
  };
  return {
    dtype,
    shape: [],
    length,
    bytes: async (start, end) => {
      const bounds = await boundsOf(start, end);
      return data.bytes(bounds[0]!, bounds.at(-1)!);
    },
    texts: async (start, end) => {
      const bounds = await boundsOf(start, end);
      const base = bounds[0]!;
      const found = await data.bytes(base, bounds.at(-1)!);
      const parts = bounds.slice(1).map((high, index) => found.subarray(bounds[index]! - base, high - base));
      return about(block, () =>
        parts.map((part) => (dtype === "json" ? parseJson(part) : utf8(part, "holds text that is not UTF-8"))),
      );
    },
  };
}

/** The rows of several sources one after the other; each is opened when one of its rows is asked for. */
export function joinedRows(
  { dtype, shape, texts }: Pick<RowSource, "dtype" | "shape" | "texts">,
  lengths: number[],
  opened: (index: number) => Promise<RowSource>,
): RowSource {
  const each = async <T>(
    start: number,
    end: number,
    read: (rows: RowSource, low: number, high: number) => Promise<T>,
  ): Promise<T[]> => {
    const parts: Promise<T>[] = [];
    let low = 0;
    for (const [index, count] of lengths.entries()) {
      const first = low;
      low += count;
      if (first >= end || low <= start || !count) continue;
      parts.push(
        opened(index).then((rows) => {
          if (rows.length !== count) corrupt(`chunk ${index} has other rows than its list`);
          return read(rows, Math.max(start - first, 0), Math.min(end - first, count));
        }),
      );
    }
    return Promise.all(parts);
  };
  return {
    dtype,
    shape,
    length: sum(lengths),
    bytes: async (start, end) => joinBytes(await each(start, end, (rows, low, high) => rows.bytes(low, high))),
    ...(texts && {
      texts: async (start: number, end: number) =>
        (await each(start, end, (rows, low, high) => rows.texts?.(low, high) ?? Promise.resolve([]))).flat(),
    }),
  };
}
