#!/usr/bin/env node
/** wshard-copy FROM TO: an episode written again, from a shard, a chunk list or a packed recording into one new shard. */
import { link, open, rename, rm, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { fromFile, openEpisode, WShardError } from "../src/node.js";
import { encodeEpisode, episodeData } from "../src/writer.js";

const words = process.argv.slice(2);
const isZstd = words.includes("--zstd");
const overwrites = words.includes("--overwrite");
const files = words.filter((each) => each !== "--zstd" && each !== "--overwrite");
const to = files.pop();

if (to === undefined || !files.length || files.some((each) => each.startsWith("--"))) {
  console.error(
    "usage: wshard-copy [--zstd] [--overwrite] FROM TO\n       wshard-copy [--zstd] [--overwrite] FROM... FOLDER",
  );
  process.exit(2);
}

async function copy(from: string, target: string): Promise<void> {
  const episode = await openEpisode(fromFile(from));
  const data = await encodeEpisode(await episodeData(episode), { compression: isZstd ? "zstd" : "none" });
  const part = `${target}.${process.pid}.tmp`;
  try {
    const file = await open(part, "wx");
    try {
      await file.writeFile(data);
      await file.sync();
    } finally {
      await file.close();
    }
    // A link, unlike a rename, never takes the place of a file.
    await (overwrites ? rename(part, target) : link(part, target));
  } finally {
    await rm(part, { force: true });
  }
}

const isFolder = files.length > 1 || (await stat(to).catch(() => undefined))?.isDirectory();
for (const from of files) {
  try {
    await copy(from, isFolder ? join(to, basename(from)) : to);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") {
      console.error(`${from}: the target exists\nChoose another one, or pass --overwrite.`);
    } else if (error instanceof WShardError) {
      console.error(`${from}: ${error.message}${error.hint && `\n${error.hint}`}`);
    } else {
      throw error;
    }
    process.exitCode = 1;
  }
}
