/** Where bytes come from: anything with a size and ranges of bytes. */
import { ChangedError, NotFoundError, TruncatedError, UnavailableError, WShardError } from "./errors.js";

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
  /** How often a request is repeated after a network error, a truncated answer, 429 or 5xx; 3 unless given. */
  retries?: number;
}

const HEAD_BYTES = 64 << 10;
const RETRIES = 3;
const FIRST_DELAY_MS = 100;
const RANGE = /^bytes (\d+)-(\d+)\/(\d+)$/;

/** A file behind a server that answers range requests. Every answer must be of the same version of the file. */
export function fromUrl(url: string | URL, options: UrlOptions = {}): Source {
  const address = String(url);
  const get = options.fetch ?? globalThis.fetch;
  let tag: string | null | undefined;
  let total: number | undefined;
  let opening: Promise<Uint8Array> | undefined;

  const request = async (start: number, end: number): Promise<Uint8Array> => {
    for (let attempt = 0; ; attempt++) {
      let isFinal = false; // whether another try cannot help
      try {
        const reply = await get(address, {
          headers: {
            ...options.headers,
            // A compressed answer would have other offsets; browsers say this themselves.
            "Accept-Encoding": "identity",
            Range: `bytes=${start}-${end - 1}`,
          },
          ...(options.signal && { signal: options.signal }),
        });
        isFinal = reply.status !== 429 && reply.status < 500;
        const size = await checkReply(reply, start, end);
        isFinal = false;
        const data = new Uint8Array(await reply.arrayBuffer());
        if (data.length === size) return data;
        throw new TruncatedError(`${address} ended in the middle of an answer`);
      } catch (error) {
        if (isFinal || attempt >= (options.retries ?? RETRIES) || options.signal?.aborted) {
          if (options.signal?.aborted || error instanceof WShardError) throw error;
          throw new UnavailableError(`${address} cannot be read (${(error as Error).message})`, undefined, CORS);
        }
      }
      await new Promise((resolve) => setTimeout(resolve, FIRST_DELAY_MS * 2 ** attempt));
    }
  };
  /** The size of the body, after checking that it is the range asked for, of the file that was opened. */
  const checkReply = async (reply: Response, start: number, end: number): Promise<number> => {
    const { status, headers, body } = reply;
    const refuse = async (error: Error): Promise<never> => {
      await body?.cancel();
      throw error;
    };
    if (status === 404) return refuse(new NotFoundError(`nothing at ${address}`));
    if (status === 416) {
      total ??= Number(headers.get("Content-Range")?.split("/")[1] ?? 0);
      if (total === 0) return (await reply.arrayBuffer()).byteLength;
    }
    const range = RANGE.exec(headers.get("Content-Range") ?? "") ?? [];
    const [first, last, size] = range.slice(1).map(Number) as [number, number, number];
    const isAsked = first === start && last === Math.min(end, size) - 1;
    if (status !== 206 || !isAsked || (headers.get("Content-Encoding") ?? "identity") !== "identity") {
      return refuse(new UnavailableError(`${address} answered ${status} without the range`, undefined, CORS));
    }
    const found = headers.get("ETag") ?? headers.get("Last-Modified");
    if (total !== undefined && (size !== total || found !== tag)) {
      return refuse(new ChangedError(`${address} changed while it was read`, undefined, "Open it again."));
    }
    tag = found;
    total = size;
    return last - first + 1;
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
  "The server must answer range requests; for pages of other sites it must allow CORS and expose Content-Range and ETag.";

function exactly(data: Uint8Array, start: number, end: number): Uint8Array {
  if (data.length !== end - start) throw new TruncatedError(`${data.length} of ${end - start} bytes at ${start}`);
  return data;
}
