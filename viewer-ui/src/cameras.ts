// Frames of one camera by number: decoded by the browser where it can, else as pixels from the server.
import { type Group, GroupDecoder } from "./decoder";
import { type SignalInfo, state } from "./model";
import { getArrays, type Refused } from "./wire";

type Picture = ImageBitmap | ImageData;
/** Decoded frames, and encoded ones, that are kept of a camera. */
const KEPT_BYTES = 64 << 20;
const KEPT_ENCODED_BYTES = 32 << 20;
/** Encoded frames that are brought before they are wanted, where that costs no network. */
const AROUND_BYTES = 16 << 20;
/** Frames that are ready before play comes to them. */
const AHEAD = 8;
/** Frames before the wanted one that are kept where they were decoded on the way to it: for steps back. */
const BEHIND = 4;
/** How long nobody moves before anything is done that nobody waits for. */
const CALM_MS = 60;

interface Head {
  codec: string | null;
  description: string;
  coded: [number, number];
  rows: number[];
  sizes: number[];
  /** Where each group begins among them; all of them are one where it is missing. */
  starts?: number[];
}

const open = new Set<Camera>();
/** Whether every camera on the page shows the frame that belongs to the cursor. */
export const isSettled = (): boolean => [...open].every((each) => each.settled);

function grouped(config: VideoDecoderConfig, rows: number[], packets: Uint8Array<ArrayBuffer>[]): Group {
  const shown = rows.filter((each) => each >= 0);
  const isReordered = shown.some((each, i) => i > 0 && each < shown[i - 1]!);
  return { config, rows, packets, bytes: packets.reduce((sum, each) => sum + each.length, 0), isReordered };
}

export class Camera {
  times: Float64Array = new Float64Array(0);
  readonly width: number;
  readonly height: number;
  wanted = -1;
  /** The frame on the screen: -1 for none yet at this time, -2 before anything was shown. */
  shown = -2;
  failure = "";
  private readonly kept = new Map<number, Picture>();
  private readonly coming = new Map<number, Promise<void>>();
  /** Frames that came out before the wanted one: they become pictures when nobody moves. */
  private passed: { frame: VideoFrame; row: number }[] = [];
  private readonly groups = new Map<number, Group>();
  private readonly configs = new Map<string, VideoDecoderConfig>();
  private readonly decoder = new GroupDecoder((frame, row) => this.take(frame, row));
  private usesCodec: boolean;
  private isPlaying = false;
  private isBusy = false;
  private isClosed = false;
  private calm = 0;

  constructor(
    readonly episode: string,
    readonly signal: SignalInfo,
    readonly base: bigint,
    private readonly painted: (picture: Picture | VideoFrame | null, row: number) => void,
    private readonly failed: (why: string) => void,
  ) {
    const [a = 1, b = 1, c] = signal.shape;
    const planesFirst = c !== undefined && ![1, 3, 4].includes(c);
    this.height = planesFirst ? b : a;
    this.width = planesFirst ? c! : b;
    this.usesCodec = signal.kind === "image" && typeof VideoDecoder !== "undefined" && signal.dtype === "uint8";
  }

  /** Read the times; the page is not settled before, also where the camera takes the place of one that showed a frame. */
  async open(): Promise<void> {
    open.add(this);
    try {
      const found = await getArrays("times", this.query({ base: this.base }));
      this.times = found.arrays.times!.data as Float64Array;
    } catch (error) {
      this.failure = (error as Error).message;
      throw error;
    }
  }

  /** The last frame at or before a time, -1 before the first. */
  rowAt(at: number): number {
    let low = 0;
    let high = this.times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle]! <= at) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Paint the frame that holds at a time, as soon as it is there, unless another one is wanted by then. */
  show(at: number, isPlaying = false): void {
    const isFirst = this.shown === -2;
    this.wanted = this.rowAt(at);
    this.isPlaying = isPlaying;
    this.paint();
    void this.work(isFirst);
    clearTimeout(this.calm);
    if (!isPlaying && this.usesCodec) this.calm = window.setTimeout(() => void this.rest(isFirst), CALM_MS);
  }

  get settled(): boolean {
    return this.wanted === this.shown || this.failure !== "";
  }

  close(): void {
    this.isClosed = true;
    open.delete(this);
    clearTimeout(this.calm);
    this.decoder.close();
    for (const each of this.passed) each.frame.close();
    this.passed = [];
    for (const each of this.kept.values()) if (each instanceof ImageBitmap) each.close();
    this.kept.clear();
    this.groups.clear();
  }

  /** Show the wanted frame if it is here. */
  private paint(): void {
    const row = this.wanted;
    const picture = this.kept.get(row);
    if (row === this.shown || (row >= 0 && !picture)) return;
    if (picture) {
      this.kept.delete(row); // the one used last is the last to go
      this.kept.set(row, picture);
    }
    this.see(picture ?? null, row);
  }

  private see(picture: Picture | VideoFrame | null, row: number): void {
    this.failure = "";
    this.shown = row;
    this.painted(picture, row);
  }

  /** The frame to see to next: the wanted one, or while it plays one of those behind it; -1 for none. */
  private next(): number {
    if (this.wanted < 0) return -1;
    if (this.wanted !== this.shown) return this.wanted;
    const stop = this.isPlaying ? Math.min(this.wanted + AHEAD + 1, this.times.length) : 0;
    for (let row = this.wanted + 1; row < stop; row++) if (!this.kept.has(row) && !this.coming.has(row)) return row;
    return -1;
  }

  /** One after the other until there is nothing to do; who scrubs past a frame does not wait for it. */
  private async work(isFirst: boolean): Promise<void> {
    if (this.isBusy) return;
    this.isBusy = true;
    for (let row = this.next(); row >= 0 && !this.isClosed; row = this.next()) {
      try {
        if (this.coming.has(row)) await this.coming.get(row);
        else if (this.usesCodec) await this.loadGroup(row, isFirst);
        else await this.loadPixels(row);
        this.paint();
      } catch (error) {
        if (this.isClosed) break;
        if (row === this.wanted) {
          this.failure = `${(error as Error).message} ${(error as Refused).hint ?? ""}`.trim();
          this.failed(this.failure);
        }
        if (row === this.next()) break; // the next move tries again
      }
    }
    this.isBusy = false;
  }

  private async loadPixels(row: number): Promise<void> {
    // While it plays several requests are under way at a time.
    const rows = this.isPlaying ? [row, row + 1, row + 2, row + 3].filter((each) => each < this.times.length && !this.kept.has(each)) : [row];
    await Promise.all(rows.map((each) => this.loadFrame(each)));
  }

  private async loadFrame(row: number): Promise<void> {
    const found = await getArrays("frame", this.query({ row }));
    const { data, shape } = found.arrays.pixels!;
    const [height = 0, width = 0, colours = 1] = shape;
    const image = new ImageData(width, height);
    const out = new Uint32Array(image.data.buffer);
    if (colours === 1) for (let i = 0; i < out.length; i++) out[i] = (data[i]! * 0x010101) | 0xff000000;
    else
      for (let i = 0, k = 0; i < out.length; i++, k += 3)
        out[i] = data[k]! | (data[k + 1]! << 8) | (data[k + 2]! << 16) | 0xff000000;
    this.keep(row, image);
  }

  private async loadGroup(row: number, isFirst: boolean): Promise<void> {
    // Of the first frame that is seen, only what it takes itself is brought.
    const group = this.groups.get(row) ?? (await this.bring(row, isFirst ? { needed: 1 } : {}));
    if (row !== this.next()) return;
    try {
      if (!group) throw new Error("no codec");
      await this.decoder.decode(group, row, this.isPlaying ? AHEAD : 0);
      if (this.shown !== row && !this.kept.has(row) && !this.coming.has(row) && row === this.next()) throw new Error("the frame did not come out");
    } catch (error) {
      if (this.isClosed) throw error;
      // This browser cannot decode it: the server can.
      this.usesCodec = false;
    }
  }

  /** The encoded frames around one; null where there are none. */
  private async bring(row: number, more: { needed?: 1; many?: 1 } = {}): Promise<Group | null> {
    const found = await getArrays("packets", this.query({ row, ...more }));
    const head = found.head as unknown as Head;
    if (!head.codec) return null;
    const data = found.arrays.data!.data as Uint8Array<ArrayBuffer>;
    let at = 0;
    const packets = head.sizes.map((size) => data.subarray(at, (at += size)));
    const starts = head.starts ?? [0];
    const config = this.configOf(head);
    const groups = starts.map((start, i) => grouped(config, head.rows.slice(start, starts[i + 1]), packets.slice(start, starts[i + 1])));
    for (const group of groups)
      for (const each of group.rows) {
        if (each < 0) continue;
        this.groups.delete(each);
        this.groups.set(each, group);
      }
    this.forgetGroups();
    return groups[0]!;
  }

  private configOf(head: Head): VideoDecoderConfig {
    const key = `${head.codec} ${head.description}`;
    let config = this.configs.get(key);
    if (!config) {
      config = { codec: head.codec!, codedWidth: head.coded[0], codedHeight: head.coded[1], optimizeForLatency: true };
      if (head.description) config.description = Uint8Array.from(atob(head.description), (c) => c.charCodeAt(0));
      this.configs.set(key, config);
    }
    return config;
  }

  private forgetGroups(): void {
    let bytes = this.encodedBytes();
    for (const oldest of this.groups.values()) {
      if (bytes <= KEPT_ENCODED_BYTES) break;
      bytes -= oldest.bytes;
      for (const row of oldest.rows) if (this.groups.get(row) === oldest) this.groups.delete(row);
    }
  }

  /** What is not here yet around the frame that is seen: both neighbours, or all of a short video that costs no network. */
  private async lookAround(): Promise<void> {
    const rows = this.groups.get(this.wanted)?.rows.filter((each) => each >= 0);
    if (!rows?.length || !this.settled) return;
    const around = [Math.max(...rows) + 1, Math.min(...rows) - 1];
    const isHere = state.dataset?.is_here;
    for (let row = around.shift(); row !== undefined; row = around.shift()) {
      if (row >= 0 && row < this.times.length && !this.groups.has(row)) {
        const group = await this.bring(row, isHere ? { many: 1 } : {}).catch(() => null);
        if (!group || !this.groups.has(row) || !this.settled || this.isClosed) return;
      }
      if (isHere && !around.length && this.encodedBytes() < AROUND_BYTES) around.push(...this.missing());
    }
  }

  /** The first frame that no group is here of. */
  private missing(): number[] {
    for (let row = 0; row < this.times.length; row++) if (!this.groups.has(row)) return [row];
    return [];
  }

  private encodedBytes(): number {
    return [...new Set(this.groups.values())].reduce((sum, each) => sum + each.bytes, 0);
  }

  /** A frame of the decoder: the wanted one goes to the screen at once, what is near it is kept. */
  private take(frame: VideoFrame, row: number): void {
    const isWanted = row === this.wanted && this.shown !== row;
    if (isWanted) this.see(frame, row);
    const isNear = row >= this.wanted - BEHIND && row <= this.wanted + AHEAD;
    if (!isNear || this.isClosed || this.kept.has(row) || this.coming.has(row)) return frame.close();
    if (this.isPlaying) return this.convert(frame, row);
    this.passed.push({ frame, row });
    while (this.passed.length > BEHIND + 1) this.passed.shift()!.frame.close();
  }

  /** Nobody moves: make pictures of the frames that were passed, and bring the groups around the one that is seen. */
  private async rest(isFirst: boolean): Promise<void> {
    if (!isSettled()) {
      this.calm = window.setTimeout(() => void this.rest(isFirst), CALM_MS);
      return;
    }
    for (const { frame, row } of this.passed.splice(0)) {
      if (row < this.wanted - BEHIND || row > this.wanted || this.kept.has(row) || this.coming.has(row)) frame.close();
      else this.convert(frame, row);
    }
    if (!isFirst) await this.lookAround();
  }

  private convert(frame: VideoFrame, row: number): void {
    // Some decoders crop, some do not: the camera says how large its frames are.
    const made = createImageBitmap(frame, 0, 0, this.width, this.height)
      .then((picture) => this.keep(row, picture))
      .catch(() => {
        this.usesCodec = false; // the server has pixels
      })
      .finally(() => {
        frame.close();
        this.coming.delete(row);
      });
    this.coming.set(row, made);
  }

  private keep(row: number, picture: Picture): void {
    if (this.isClosed) return picture instanceof ImageBitmap ? picture.close() : undefined;
    this.kept.set(row, picture);
    if (row === this.wanted) this.paint();
    const most = Math.max(2 * AHEAD, KEPT_BYTES / (this.width * this.height * 4));
    for (const [old, each] of this.kept) {
      if (this.kept.size <= most) break;
      if (old === this.wanted) continue;
      if (each instanceof ImageBitmap) each.close();
      this.kept.delete(old);
    }
  }

  private query(more: Record<string, string | number | bigint>): Record<string, string | number | bigint> {
    return { episode: this.episode, signal: this.signal.number, ...more };
  }
}
