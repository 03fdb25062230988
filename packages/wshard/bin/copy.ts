#!/usr/bin/env node
/** wshard-copy FROM TO: an episode written again, from a shard, a chunk list or a packed recording into one shard. */
import { open, rename, rm } from "node:fs/promises";
import { fromFile, openEpisode, WShardError } from "../src/node.js";
import { encodeEpisode, episodeData } from "../src/writer.js";

const words = process.argv.slice(2);
const isZstd = words.includes("--zstd");
const [from, to, ...more] = words.filter((each) => each !== "--zstd");

if (from === undefined || to === undefined || more.length || from.startsWith("--")) {
  console.error("usage: wshard-copy [--zstd] FROM TO");
  process.exit(2);
}
try {
  const episode = await openEpisode(fromFile(from));
  const data = await encodeEpisode(await episodeData(episode), { compression: isZstd ? "zstd" : "none" });
  const part = `${to}.${process.pid}.tmp`;
  try {
    const file = await open(part, "wx");
    try {
      await file.writeFile(data);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(part, to);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
} catch (error) {
  if (!(error instanceof WShardError)) throw error;
  console.error(`${from}: ${error.message}${error.hint && `\n${error.hint}`}`);
  process.exitCode = 1;
}
