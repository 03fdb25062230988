import { CorruptLayoutError, LimitExceededError } from "./errors.js";

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
const WORDS: [string, Json][] = [
  ["null", null],
  ["true", true],
  ["false", false],
];
const ESCAPES: Record<string, string> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

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
  if (data.length > MAX_JSON_BYTES) throw new LimitExceededError(`JSON of ${data.length} bytes is too large`);
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    throw new CorruptLayoutError("not valid JSON (not UTF-8)");
  }
  let at = 0;

  const fail = (what: string): never => {
    throw new CorruptLayoutError(`not valid JSON (${what} at character ${at})`);
  };
  const match = (pattern: RegExp): RegExpExecArray | null => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found;
  };

  const parseString = (): string => {
    at++;
    let out = "";
    for (;;) {
      out += match(PLAIN)?.[0] ?? "";
      const next = text[at++];
      if (next === '"') return out;
      if (next !== "\\") return fail("a string without end, or a control character");
      const letter = text[at++] ?? "";
      if (letter === "u") {
        const digits = text.slice(at, at + 4);
        if (!/^[0-9a-fA-F]{4}$/.test(digits)) fail("a bad escape");
        out += String.fromCharCode(Number.parseInt(digits, 16));
        at += 4;
      } else out += ESCAPES[letter] ?? fail("a bad escape");
    }
  };

  const store = (holder: JsonObject | Json[], key: string | number, depth: number): void => {
    let found: Json;
    match(SPACE);
    const next = text[at];
    const word = WORDS.find(([each]) => text.startsWith(each, at));
    if (next === "{") found = parseObject(depth);
    else if (next === "[") found = parseArray(depth);
    else if (next === '"') found = parseString();
    else if (word) {
      at += word[0].length;
      found = word[1];
    } else {
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

  const parseArray = (depth: number): Json[] => {
    if (depth > MAX_DEPTH) fail("nested too deep");
    at++;
    const out: Json[] = [];
    match(SPACE);
    if (text[at] === "]") {
      at++;
      return out;
    }
    for (;;) {
      store(out, out.length, depth + 1);
      const next = text[at++];
      if (next === "]") return out;
      if (next !== ",") fail("',' or ']' was expected");
    }
  };

  const parseObject = (depth: number): JsonObject => {
    if (depth > MAX_DEPTH) fail("nested too deep");
    at++;
    const out: JsonObject = {};
    match(SPACE);
    if (text[at] === "}") {
      at++;
      return out;
    }
    for (;;) {
      match(SPACE);
      if (text[at] !== '"') fail("a key was expected");
      const key = parseString();
      if (Object.hasOwn(out, key)) fail("a key appears twice");
      match(SPACE);
      if (text[at++] !== ":") fail("':' was expected");
      store(out, key, depth + 1);
      const next = text[at++];
      if (next === "}") return out;
      if (next !== ",") fail("',' or '}' was expected");
    }
  };

  const root: Json[] = [];
  store(root, 0, 0);
  if (at !== text.length) fail("more after its end");
  return root[0] as Json;
}

/** A JSON object, or the error that says what was found instead. */
export function parseJsonObject(data: Uint8Array): JsonObject {
  const value = parseJson(data);
  if (!isObject(value)) throw new CorruptLayoutError("JSON is no object, one was expected");
  return value;
}
