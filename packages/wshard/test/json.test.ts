import { expect, test } from "vitest";
import { CorruptLayoutError } from "../src/errors.js";
import { isFraction, parseJson } from "../src/json.js";

const parse = (text: string) => parseJson(new TextEncoder().encode(text));

test("what JSON.parse reads is read alike", () => {
  const texts = [
    "null",
    " true ",
    "-0.5e-3",
    '"a\\u00e9\\ud83d\\ude00\\n\\/"',
    "[]",
    "{}",
    '[1,[2,{"a":null}],"x"]',
    '{"":0," ":{"b":[false]}}',
    '{"__proto__":{"x":1},"constructor":2}',
    "\t[ 1 ,\r\n 2 ]",
    "1e3",
    '"é😀"',
  ];
  for (const text of texts) expect(JSON.stringify(parse(text))).toBe(JSON.stringify(JSON.parse(text)));
});

test("what is not JSON is refused", () => {
  const texts = [
    "",
    "{",
    "[1,]",
    '{"a":1,}',
    "01",
    "+1",
    ".5",
    "1.",
    "NaN",
    "-Infinity",
    "'a'",
    '{"a":1,"a":2}',
    "[1] 2",
    '"\n"',
    '"\\x"',
    '"\\u12g4"',
    "tru",
    "{a:1}",
    "[1 2]",
    "-",
  ];
  for (const text of texts) expect(() => parse(text), text).toThrow(CorruptLayoutError);
  expect(() => parseJson(Uint8Array.of(0x22, 0xff, 0x22))).toThrow(CorruptLayoutError);
  expect(() => parse("[".repeat(100_000))).toThrow(CorruptLayoutError);
});

test("no whole number is rounded, and 10.0 is no count", () => {
  expect(parse("9223372036854775807")).toBe(9223372036854775807n);
  const found = parse('{"a":10,"b":10.0,"c":[1e1]}') as { c: unknown[] };
  expect([isFraction(found, "a"), isFraction(found, "b"), isFraction(found.c, 0)]).toEqual([false, true, true]);
});
