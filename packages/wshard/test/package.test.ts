/** What is published: the tarball imports and runs, and the reader stays small. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { buildSync } from "esbuild";
import { expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const GOLDEN = fileURLToPath(new URL("../../../tests/golden/wshard/lanes.wshard", import.meta.url));

test("the reader has at most 15 KB gzipped; chunk lists and recordings come when they are needed", () => {
  const made = buildSync({
    entryPoints: [join(ROOT, "src/index.ts")],
    bundle: true,
    minify: true,
    format: "esm",
    splitting: true,
    metafile: true,
    external: ["fzstd"], // the one dependency, 4 KB
    outdir: "out",
    write: false,
  });
  const files = new Map(made.outputFiles.map((file) => [basename(file.path), file.contents]));
  const statics = new Set<string>();
  const visit = (path: string) => {
    if (statics.has(basename(path))) return;
    statics.add(basename(path));
    for (const each of made.metafile.outputs[path]!.imports)
      if (each.kind === "import-statement" && !each.external) visit(each.path);
  };
  visit("out/index.js");
  const size = (names: Iterable<string>) =>
    gzipSync(Buffer.concat([...names].map((name) => files.get(name)!)), { level: 9 }).length;
  expect(size(statics)).toBeLessThanOrEqual(15 * 1024);
  expect(size(files.keys())).toBeLessThanOrEqual(18 * 1024);
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
