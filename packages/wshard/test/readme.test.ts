/** The example of the README runs. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { transformSync } from "esbuild";
import { expect, test } from "vitest";
import * as reader from "../src/node.js";
import * as writer from "../src/writer.js";

test("the example of the README", async () => {
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
  const source = /```typescript\n([\s\S]*?)```/.exec(readme)?.[1] ?? "";
  const body = transformSync(source.replace(/^import .*$/gm, ""), { loader: "ts" }).code;
  const folder = mkdtempSync(join(tmpdir(), "wshard-"));
  const said: unknown[][] = [];
  const names = { openEpisode: reader.openEpisode, encodeEpisode: writer.encodeEpisode };
  const helpers = {
    ...names,
    fromFile: (name: string) => reader.fromFile(join(folder, name)),
    writeFile: (name: string, data: Uint8Array) => writeFile(join(folder, name), data),
    console: { log: (...words: unknown[]) => said.push(words) },
  };
  const run = new Function(...Object.keys(helpers), `return (async () => {${body}})()`);
  try {
    await run(...Object.values(helpers));
  } finally {
    rmSync(folder, { recursive: true });
  }
  expect(said[0]).toEqual(["observation", "f32", [2], 3]);
  expect(said[1]).toEqual([4, BigInt64Array.of(0n, 33_333_333n, 66_666_667n)]);
});
