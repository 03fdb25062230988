/** The suite that Python, TypeScript and Go share: tests/conformance of the repository. */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { describe as describeFile, stringify } from "../bin/describe.js";
import * as layout from "../src/layout.js";
import { DTYPES, fromFile, WShardError } from "../src/node.js";

const TESTS = fileURLToPath(new URL("../../../tests/", import.meta.url));
const expected = JSON.parse(readFileSync(`${TESTS}conformance/expected.json`, "utf8"));

async function read(name: string): Promise<unknown> {
  try {
    return JSON.parse(stringify(await describeFile(() => fromFile(TESTS + name), true)));
  } catch (error) {
    if (error instanceof WShardError) return { error: error.code };
    throw error;
  }
}

describe("the shared suite", () => {
  test.each(Object.keys(expected.files))("%s", async (name) => {
    expect(await read(name)).toEqual(expected.files[name]);
  });

  test("the numbers of the format are those of Python", () => {
    const { DTYPES: dtypes, TABLE_OFFSET, ...numbers } = expected.layout;
    expect(DTYPES).toEqual(dtypes);
    expect(layout.HEADER_BYTES).toBe(TABLE_OFFSET);
    expect({ ...layout }).toMatchObject(numbers);
  });
});
