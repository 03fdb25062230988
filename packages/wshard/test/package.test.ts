/** What is published: the tarball imports and runs, and the reader stays small. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { rolldown } from "rolldown";
import { expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const GOLDEN = fileURLToPath(new URL("../../../tests/golden/wshard/lanes.wshard", import.meta.url));

test("the whole reader has at most 15,000 bytes gzipped, as Vite would bundle it", async () => {
  // What is published, with its one dependency apart: fzstd has 4 KB.
  const bundle = await rolldown({ input: join(ROOT, "dist/src/index.js"), external: ["fzstd"] });
  const { output } = await bundle.generate({ format: "esm", minify: true });
  await bundle.close();
  expect(output).toHaveLength(1); // nothing is loaded later
  expect(output[0].exports).toContain("openEpisode");
  expect(gzipSync(output[0].code, { level: 9 }).length).toBeLessThanOrEqual(15_000);
});

test("the tarball can be imported and its command runs", () => {
  const folder = mkdtempSync(join(tmpdir(), "wshard-"));
  try {
    const packed = execFileSync("npm", ["pack", "--ignore-scripts", "--json", "--pack-destination", folder], {
      cwd: ROOT,
    });
    const { filename } = JSON.parse(String(packed))[0];
    const target = join(folder, "node_modules/@warpdata/wshard");
    mkdirSync(target, { recursive: true });
    execFileSync("tar", ["-xzf", join(folder, filename), "-C", target, "--strip-components=1"]);
    symlinkSync(join(ROOT, "node_modules/fzstd"), join(folder, "node_modules/fzstd"));
    const script = `
      import { fromFile, openEpisode } from "@warpdata/wshard";
      import { encodeEpisode } from "@warpdata/wshard/writer";
      const episode = await openEpisode(fromFile(process.argv[1]));
      console.log(episode.id, typeof encodeEpisode);`;
    const said = execFileSync("node", ["--input-type=module", "-e", script, GOLDEN], { cwd: folder });
    expect(String(said).trim()).toBe("golden_lanes function");
    const dumped = execFileSync("node", [join(target, "dist/bin/dump.js"), GOLDEN], { cwd: folder });
    const { channels } = JSON.parse(String(dumped));
    expect(channels[0]).toMatchObject({ name: "signal/joint", dtype: "f32", shape: [10, 3] });
    expect(channels[0].sha256).toMatch(/^[0-9a-f]{64}$/);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("no file of the package names a registry", () => {
  expect(readFileSync(join(ROOT, "package-lock.json"), "utf8")).not.toMatch(/"resolved"|registry\./);
});
