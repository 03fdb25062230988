#!/usr/bin/env node
/** wshard-dump FILE: the channels of a file with dtype, shape and SHA-256 of their bytes, as JSON. */
import { fromFile, WShardError } from "../src/node.js";
import { describe, stringify } from "./describe.js";

const USAGE = `usage: wshard-dump [--full] FILE
       wshard-dump [--full] --lines FILE...

Prints the channels of a shard, a chunk list or a packed recording as JSON, every checksum verified.
--full adds metadata, first values and a window of each channel; --lines prints one line per file, errors too.`;

const words = process.argv.slice(2);
const flags = new Set(words.filter((each) => each.startsWith("--")));
const files = words.filter((each) => !each.startsWith("--"));
const isLines = flags.delete("--lines");
const isFull = flags.delete("--full");

if (flags.size || !files.length || (!isLines && files.length > 1)) {
  console.error(USAGE);
  process.exit(flags.has("--help") ? 0 : 2);
}
for (const file of files) {
  try {
    const found = await describe(() => fromFile(file), isFull);
    console.log(stringify(found, isLines ? "" : "\n"));
  } catch (error) {
    if (!(error instanceof WShardError)) throw error;
    if (isLines) console.log(stringify({ error: error.code, message: error.message }));
    else {
      console.error(`${file}: ${error.message}${error.hint && `\n${error.hint}`}`);
      process.exitCode = 1;
    }
  }
}
