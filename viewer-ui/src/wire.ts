// How the page talks to its server: JSON, typed arrays, changes, and a stream of events. An exported site has files instead.
import { siteArrays, siteJson, siteName, siteSound } from "./site";

export type Typed = Uint8Array | Uint16Array | Uint32Array | Int8Array | Int16Array | Int32Array | Float32Array | Float64Array;
export interface Framed {
  head: Record<string, unknown>;
  arrays: Record<string, { data: Typed; shape: number[] }>;
}
export type Query = Record<string, string | number | bigint | undefined>;

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

const TYPES = { u1: Uint8Array, u2: Uint16Array, f4: Float32Array, f8: Float64Array };
let token = "";
let writeToken = "";

/** Take the token out of the address bar and exchange it for a cookie, so that a reload and a shared link work. */
export async function connect(): Promise<void> {
  const found = /(?:^|[#&])t=([^&]+)/.exec(location.hash);
  if (found?.[1]) {
    token = decodeURIComponent(found[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  const answer = (await getJson("session", {})) as { write_token: string };
  writeToken = answer.write_token;
}

function address(name: string, query: Query): string {
  const text = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined) text.set(key, String(value));
  const rest = text.toString();
  return `api/${name}${rest ? `?${rest}` : ""}`;
}

async function ask(name: string, query: Query, options: RequestInit = {}): Promise<Response> {
  const headers = new Headers(options.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let answer: Response;
  try {
    answer = await fetch(address(name, query), { ...options, headers });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Refused(0, "the viewer does not answer", "Start it again with `warp view`.");
  }
  if (answer.ok) return answer;
  let said: { error?: string; hint?: string } = {};
  try {
    said = await answer.json();
  } catch {
    // not ours: say the status
  }
  throw new Refused(answer.status, said.error ?? `error ${answer.status}`, said.hint ?? "");
}

export async function getJson<T = unknown>(name: string, query: Query, signal?: AbortSignal): Promise<T> {
  if (siteName()) return (await siteJson(name, query)) as T;
  return (await ask(name, query, signal ? { signal } : {})).json();
}

export async function getArrays(name: string, query: Query, signal?: AbortSignal): Promise<Framed> {
  if (siteName()) return siteArrays(name, query);
  const answer = await ask(name, query, signal ? { signal } : {});
  return unframe(await answer.arrayBuffer());
}

export async function post<T = unknown>(name: string, body: object): Promise<T> {
  if (siteName()) throw new Refused(403, "an exported site can only be read", "");
  const headers = { "Content-Type": "application/json", "X-Warp-Write": writeToken };
  return (await ask(name, {}, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

export function videoAddress(query: Query): string {
  return address("video", query);
}

/** A sound as a WAV file, which an exported site has beside its episodes. */
export async function soundAddress(episode: string, signal: number): Promise<string> {
  return siteName() ? siteSound(episode, signal) : videoAddress({ episode, signal });
}

export function typed(dtype: string, buffer: ArrayBuffer, at: number, count: number): Typed {
  return new TYPES[dtype as keyof typeof TYPES](buffer, at, count);
}

/** A small JSON head, then arrays at multiples of eight: see framing.py. */
export function unframe(buffer: ArrayBuffer): Framed {
  const bytes = new Uint8Array(buffer);
  if (bytes.length < 8 || String.fromCharCode(...bytes.subarray(0, 4)) !== "WDA1") throw new Error("not arrays");
  const length = new DataView(buffer).getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const start = Math.ceil((8 + length) / 8) * 8;
  const arrays: Framed["arrays"] = {};
  for (const [name, about] of Object.entries<{ dtype: keyof typeof TYPES; shape: number[]; at: number }>(
    head.arrays,
  )) {
    const count = about.shape.reduce((a, b) => a * b, 1);
    arrays[name] = { data: typed(about.dtype, buffer, start + about.at, count), shape: about.shape };
  }
  return { head, arrays };
}

/** Follow server-sent events until the page goes; begins again when the connection is lost. */
export async function follow(name: string, heard: (state: unknown) => void): Promise<void> {
  for (;;) {
    try {
      const answer = await ask(name, {});
      const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop() ?? "";
        for (const part of parts) if (part.startsWith("data: ")) heard(JSON.parse(part.slice(6)));
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}
