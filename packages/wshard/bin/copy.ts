#!/usr/bin/env node
/** wshard-copy FROM TO: an episode written again, from a shard, a chunk list or a packed recording into one shard. */
import { open, rename, rm, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { fromFile, openEpisode, WShardError } from "../src/node.js";
import { encodeEpisode, episodeData } from "../src/writer.js";

const words = process.argv.slice(2);
const isZstd = words.includes("--zstd");
const files = words.filter((each) => each !== "--zstd");
const to = files.pop();

if (to === undefined || !files.length || files.some((each) => each.startsWith("--"))) {
  console.error("usage: wshard-copy [--zstd] FROM TO\n       wshard-copy [--zstd] FROM... FOLDER");
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
    await rename(part, target);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
}

const isFolder = files.length > 1 || (await stat(to).catch(() => undefined))?.isDirectory();
for (const from of files) {
  try {
    await copy(from, isFolder ? join(to, basename(from)) : to);
  } catch (error) {
    if (!(error instanceof WShardError)) throw error;
    console.error(`${from}: ${error.message}${error.hint && `\n${error.hint}`}`);
    process.exitCode = 1;
  }
}
