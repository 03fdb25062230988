/** Where bytes come from: anything with a size and ranges of bytes. */
import { ChangedError, NotFoundError, TruncatedError, UnavailableError } from "./errors.js";

export interface Source {
  /** Bytes of the whole file. */
  size(): Promise<number>;
  /** Exactly the bytes [start, end). */
  read(start: number, end: number): Promise<Uint8Array>;
  /** A file of the same folder, by relative name: where the chunks of a chunk list are. */
  beside?(name: string): Source;
}

/** Bytes in memory. */
export function fromBytes(bytes: Uint8Array | ArrayBuffer): Source {
  const data = bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes);
  return {
    size: async () => data.length,
    read: async (start, end) => exactly(data.subarray(start, end), start, end),
  };
}

/** A file chosen in a browser, or any Blob. */
export function fromBlob(blob: Blob): Source {
  return {
    size: async () => blob.size,
    read: async (start, end) => exactly(new Uint8Array(await blob.slice(start, end).arrayBuffer()), start, end),
  };
}

export interface UrlOptions {
  /** The `fetch` to use, where it is not the global one. */
  fetch?: typeof globalThis.fetch;
  /** Sent with every request. */
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Bytes of the first request, which tells the size and usually holds all metadata. */
  headBytes?: number;
}

const HEAD_BYTES = 64 << 10;
const RANGE = /^bytes (\d+)-(\d+)\/(\d+)$/;

/** A file behind a server that answers range requests. Every answer must be of the same version of the file. */
export function fromUrl(url: string | URL, options: UrlOptions = {}): Source {
  const address = String(url);
  const get = options.fetch ?? globalThis.fetch;
  let tag: string | null | undefined;
  let total: number | undefined;
  let opening: Promise<Uint8Array> | undefined;

  const request = async (start: number, end: number): Promise<Uint8Array> => {
    let reply: Response;
    try {
      reply = await get(address, {
        headers: {
          ...options.headers,
          // A compressed answer would have other offsets; browsers say this themselves.
          "Accept-Encoding": "identity",
          Range: `bytes=${start}-${end - 1}`,
        },
        ...(options.signal && { signal: options.signal }),
      });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new UnavailableError(`${address} cannot be reached (${(error as Error).message})`, undefined, CORS);
    }
    if (reply.status === 404) throw new NotFoundError(`nothing at ${address}`);
    if (reply.status === 416) {
      total ??= Number(reply.headers.get("Content-Range")?.split("/")[1] ?? 0);
      if (total === 0) return new Uint8Array(0);
    }
    const range = RANGE.exec(reply.headers.get("Content-Range") ?? "") ?? [];
    const [first, last, size] = range.slice(1).map(Number) as [number, number, number];
    const isAsked = first === start && last === Math.min(end, size) - 1;
    const encoding = reply.headers.get("Content-Encoding");
    if (reply.status !== 206 || !isAsked || (encoding && encoding !== "identity")) {
      await reply.body?.cancel();
      throw new UnavailableError(
        `${address} answered ${reply.status} without the range that was asked for`,
        undefined,
        CORS,
      );
    }
    const found = reply.headers.get("ETag") ?? reply.headers.get("Last-Modified");
    if (total !== undefined && (size !== total || found !== tag)) {
      await reply.body?.cancel();
      throw new ChangedError(`${address} changed while it was read`, undefined, "Open it again.");
    }
    tag = found;
    total = size;
    const data = new Uint8Array(await reply.arrayBuffer());
    if (data.length !== last - first + 1) throw new TruncatedError(`${address} ended in the middle of an answer`);
    return data;
  };
  const head = async (): Promise<Uint8Array> => {
    opening ??= request(0, options.headBytes ?? HEAD_BYTES);
    try {
      return await opening;
    } catch (error) {
      opening = undefined; // the next call tries again
      throw error;
    }
  };

  return {
    size: async () => {
      await head();
      return total ?? 0;
    },
    read: async (start, end) => {
      if (end <= start) return new Uint8Array(0);
      const kept = await head();
      return end <= kept.length ? kept.subarray(start, end) : exactly(await request(start, end), start, end);
    },
    beside: (name) => {
      const next = new URL(address, globalThis.location?.href);
      // A signed address is signed for one file only; what is public needs no query.
      next.search = "";
      return fromUrl(new URL(name.split("/").map(encodeURIComponent).join("/"), next), options);
    },
  };
}

const CORS =
  "The server must answer range requests; from another site it must also allow them (CORS) and expose Content-Range and ETag.";

function exactly(data: Uint8Array, start: number, end: number): Uint8Array {
  if (data.length !== end - start) throw new TruncatedError(`${data.length} of ${end - start} bytes at ${start}`);
  return data;
}
