import { utf8 } from "./bytes.js";
import { corrupt, LimitExceededError } from "./errors.js";

/** JSON as a program may have written it; whole numbers beyond 2^53 come as BigInt, so that none is rounded. */
export type Json = null | boolean | number | bigint | string | Json[] | JsonObject;
export interface JsonObject {
  [key: string]: Json;
}

const MAX_JSON_BYTES = 64 << 20;
const MAX_DEPTH = 500;
const NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON forbids exactly these inside strings
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const WORD = /null|true|false/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[\da-fA-F]{4})/y;

// A number with a point or an exponent is no count, even where its value is whole: 10.0 is not 10 here.
const fractions = new WeakMap<object, Set<string>>();

/** Whether the number under this key was written with a point or an exponent. */
export function isFraction(holder: object, key: string | number): boolean {
  return fractions.get(holder)?.has(String(key)) ?? false;
}

/** Whether this is an object with named members. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** One JSON text, strictly: a key twice, NaN, absurd nesting and anything that is not UTF-8 are errors. */
export function parseJson(data: Uint8Array): Json {
  if (data.length > MAX_JSON_BYTES) throw new LimitExceededError(`too large: ${data.length} bytes of JSON`);
  const text = utf8(data, "invalid JSON (not UTF-8)").replace(/^\ufeff/, "");
  let at = 0;

  const fail = (what: string): never => {
    corrupt(`invalid JSON (${what} at ${at})`);
  };
  const match = (pattern: RegExp): RegExpExecArray | null => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found;
  };

  const parseString = (): string => {
    const start = at++;
    do match(PLAIN);
    while (match(ESCAPE));
    if (text[at++] !== '"') fail("a bad string");
    return JSON.parse(text.slice(start, at));
  };

  const store = (holder: JsonObject | Json[], key: string | number, depth: number): void => {
    let found: Json;
    match(SPACE);
    const next = text[at];
    const word = match(WORD);
    if (word) found = JSON.parse(word[0]);
    else if (next === "{") found = parseObject(depth);
    else if (next === "[") found = parseArray(depth);
    else if (next === '"') found = parseString();
    else {
      const number = match(NUMBER) ?? fail("a value was expected");
      found = Number(number[0]);
      if (number[1] !== undefined || number[2] !== undefined) {
        const keys = fractions.get(holder) ?? new Set();
        fractions.set(holder, keys.add(String(key)));
      } else if (!Number.isSafeInteger(found)) found = BigInt(number[0]);
    }
    // A key named __proto__ must be a key like any other.
    Object.defineProperty(holder, key, { value: found, writable: true, enumerable: true, configurable: true });
    match(SPACE);
  };

  /** What stands between brackets: `one` reads each item. */
  const items = (close: string, depth: number, one: () => void): void => {
    if (depth > MAX_DEPTH) fail("nested too deep");
    at++;
    match(SPACE);
    if (text[at] === close) at++;
    else
      for (;;) {
        one();
        const next = text[at++];
        if (next === close) break;
        if (next !== ",") fail(`',' or '${close}' was expected`);
      }
  };

  const parseArray = (depth: number): Json[] => {
    const out: Json[] = [];
    items("]", depth, () => store(out, out.length, depth + 1));
    return out;
  };

  const parseObject = (depth: number): JsonObject => {
    const out: JsonObject = {};
    items("}", depth, () => {
      match(SPACE);
      if (text[at] !== '"') fail("a key was expected");
      const key = parseString();
      if (Object.hasOwn(out, key)) fail("a key twice");
      match(SPACE);
      if (text[at++] !== ":") fail("':' was expected");
      store(out, key, depth + 1);
    });
    return out;
  };

  const root: Json[] = [];
  store(root, 0, 0);
  if (at !== text.length) fail("more than one value");
  return root[0] as Json;
}

/** A JSON object, or the error that says what was found instead. */
export function parseJsonObject(data: Uint8Array): JsonObject {
  const value = parseJson(data);
  if (!isObject(value)) corrupt("not a JSON object");
  return value;
}
