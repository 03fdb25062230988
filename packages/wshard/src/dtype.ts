/** The arrays of the thirteen element types; f16 and bf16 have none of their own everywhere. */
const ARRAYS = {
  f64: Float64Array,
  f32: Float32Array,
  f16: Uint16Array,
  bf16: Uint16Array,
  i64: BigInt64Array,
  i32: Int32Array,
  i16: Int16Array,
  i8: Int8Array,
  u64: BigUint64Array,
  u32: Uint32Array,
  u16: Uint16Array,
  u8: Uint8Array,
  bool: Uint8Array,
} as const;

export type DType = keyof typeof ARRAYS;

/** The thirteen element types and their sizes in bytes. */
export const DTYPES = Object.fromEntries(
  Object.entries(ARRAYS).map(([name, kind]) => [name, kind.BYTES_PER_ELEMENT]),
) as Readonly<Record<DType, number>>;

export type TypedArray =
  | Float64Array
  | Float32Array
  | BigInt64Array
  | Int32Array
  | Int16Array
  | Int8Array
  | BigUint64Array
  | Uint32Array
  | Uint16Array
  | Uint8Array;

export function isDType(name: unknown): name is DType {
  return typeof name === "string" && Object.hasOwn(DTYPES, name);
}

/** Bytes as numbers; f16 and bf16, which have no array of their own everywhere, come as their 16 bits. */
export function typedArray(dtype: DType, bytes: Uint8Array): TypedArray {
  const size = DTYPES[dtype];
  const aligned = bytes.byteOffset % size === 0 ? bytes : bytes.slice();
  return new ARRAYS[dtype](aligned.buffer as ArrayBuffer, aligned.byteOffset, aligned.byteLength / size);
}

/** Bytes as 32-bit floats: exact for f32, f16, bf16 and small whole numbers, rounded for all else. */
export function toFloat32(dtype: DType, bytes: Uint8Array): Float32Array {
  const values = typedArray(dtype, bytes);
  if (values instanceof Float32Array) return values;
  const out = new Float32Array(values.length);
  if (dtype === "bf16") {
    const bits = new Uint32Array(out.buffer);
    for (let i = 0; i < bits.length; i++) bits[i] = (values[i] as number) << 16;
  } else if (dtype === "f16") for (let i = 0; i < out.length; i++) out[i] = halfToFloat(values[i] as number);
  else for (let i = 0; i < out.length; i++) out[i] = Number(values[i]);
  return out;
}

function halfToFloat(bits: number): number {
  const exponent = (bits >>> 10) & 31;
  const fraction = bits & 1023;
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
