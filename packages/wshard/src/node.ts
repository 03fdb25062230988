/** What Node adds to the package: files. */
import { open } from "node:fs/promises";
import { dirname, join } from "node:path";
import { NotFoundError, TruncatedError } from "./errors.js";
import type { Source } from "./source.js";

export * from "./index.js";

/** A file of this machine. It is opened for each read, so that there is nothing to close. */
export function fromFile(path: string): Source {
  const using = async <T>(work: (file: Awaited<ReturnType<typeof open>>) => Promise<T>): Promise<T> => {
    let file: Awaited<ReturnType<typeof open>>;
    try {
      file = await open(path, "r");
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") throw new NotFoundError(`no such file: ${path}`);
      throw error;
    }
    try {
      return await work(file);
    } finally {
      await file.close();
    }
  };
  return {
    size: () => using(async (file) => (await file.stat()).size),
    read: (start, end) =>
      using(async (file) => {
        const data = new Uint8Array(end - start);
        for (let filled = 0; filled < data.length; ) {
          const { bytesRead } = await file.read(data, filled, data.length - filled, start + filled);
          if (!bytesRead) throw new TruncatedError(`${filled} of ${data.length} bytes at ${start} of ${path}`);
          filled += bytesRead;
        }
        return data;
      }),
    beside: (name) => fromFile(join(dirname(path), name)),
  };
}
