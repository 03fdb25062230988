// Frames of one camera by number: decoded by the browser where it can, else as pixels from the server.
import { type SignalInfo } from "./model";
import { getArrays, type Refused } from "./wire";

type Picture = ImageBitmap | ImageData;
const KEPT_BYTES = 192 << 20;

export class Camera {
  times: Float64Array = new Float64Array(0);
  readonly width: number;
  readonly height: number;
  wanted = -1;
  /** The frame on the screen: -1 for none yet at this time, -2 before anything was shown. */
  shown = -2;
  failure = "";
  private readonly kept = new Map<number, Picture>();
  private readonly asked = new Map<number, Promise<void>>();
  private decoder: VideoDecoder | null = null;
  private configured = "";
  private usesCodec: boolean;
  private queue: Promise<unknown> = Promise.resolve();
  private outputs: ((frame: VideoFrame) => void) | null = null;
  private broken: Error | null = null;

  constructor(
    readonly episode: string,
    readonly signal: SignalInfo,
    readonly base: bigint,
    private readonly painted: (picture: Picture | null, row: number) => void,
    private readonly failed: (why: string) => void,
  ) {
    const [a = 1, b = 1, c] = signal.shape;
    const planesFirst = c !== undefined && ![1, 3, 4].includes(c);
    this.height = planesFirst ? b : a;
    this.width = planesFirst ? c! : b;
    this.usesCodec = signal.kind === "image" && typeof VideoDecoder !== "undefined" && signal.dtype === "uint8";
  }

  async open(): Promise<void> {
    const found = await getArrays("times", this.query({ base: this.base }));
    this.times = found.arrays.times!.data as Float64Array;
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
  show(at: number, ahead = false): void {
    this.wanted = this.rowAt(at);
    void this.paint();
    if (ahead && this.wanted >= 0) {
      const next = Math.min(this.wanted + 8, this.times.length - 1);
      if (!this.kept.has(next)) void this.load(next, true).catch(() => undefined);
    }
  }

  get settled(): boolean {
    return this.wanted === this.shown || this.failure !== "";
  }

  close(): void {
    for (const each of this.kept.values()) if (each instanceof ImageBitmap) each.close();
    this.kept.clear();
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
  }

  private async paint(): Promise<void> {
    const row = this.wanted;
    if (row === this.shown) return;
    if (row < 0) {
      this.shown = row;
      return this.painted(null, row);
    }
    try {
      while (!this.kept.has(row)) {
        await this.load(row);
        if (this.wanted !== row) return;
      }
    } catch (error) {
      if (this.wanted !== row) return;
      this.failure = `${(error as Error).message} ${(error as Refused).hint ?? ""}`.trim();
      return this.failed(this.failure);
    }
    if (this.wanted !== row || this.shown === row) return;
    const picture = this.kept.get(row)!;
    this.kept.delete(row);
    this.kept.set(row, picture);
    this.failure = "";
    this.shown = row;
    this.painted(picture, row);
  }

  private load(row: number, ahead = false): Promise<void> {
    const known = this.asked.get(row);
    if (known) return known;
    const made = (this.usesCodec ? this.loadGroup(row, ahead) : this.loadPixels(row)).finally(() => this.asked.delete(row));
    this.asked.set(row, made);
    return made;
  }

  private async loadPixels(row: number): Promise<void> {
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

  private loadGroup(row: number, ahead: boolean): Promise<void> {
    const work = this.queue.then(async () => {
      // Who scrubs past a frame does not wait for it.
      if (this.kept.has(row) || (this.wanted !== row && !ahead)) return;
      const found = await getArrays("packets", this.query({ row }));
      try {
        if (!found.head.codec) throw new Error("no codec");
        await this.decode(found.head as never, found.arrays.data!.data as Uint8Array<ArrayBuffer>);
        if (!this.kept.has(row)) throw new Error("the frame did not come out");
      } catch {
        // This browser cannot decode it: the server can.
        this.usesCodec = false;
        await this.loadPixels(row);
      }
    });
    this.queue = work.catch(() => undefined);
    return work;
  }

  private async decode(
    head: { codec: string; description: string; coded: [number, number]; rows: number[]; sizes: number[] },
    data: Uint8Array<ArrayBuffer>,
  ): Promise<void> {
    const config: VideoDecoderConfig = {
      codec: head.codec,
      codedWidth: head.coded[0],
      codedHeight: head.coded[1],
      optimizeForLatency: true,
    };
    if (head.description) config.description = Uint8Array.from(atob(head.description), (c) => c.charCodeAt(0));
    const key = head.codec + head.description;
    if (!this.decoder || this.decoder.state === "closed" || this.configured !== key) {
      if (!(await VideoDecoder.isConfigSupported(config)).supported) throw new Error("not supported");
      this.broken = null;
      this.decoder = new VideoDecoder({
        output: (frame) => this.outputs?.(frame),
        error: (error) => (this.broken = error),
      });
      this.decoder.configure(config);
      this.configured = key;
    }
    const pictures: Promise<void>[] = [];
    this.outputs = (frame) => {
      const row = head.rows[frame.timestamp] ?? -1;
      if (row < 0 || this.kept.has(row)) return frame.close();
      // Some decoders crop, some do not: the camera says how large its frames are.
      const made = createImageBitmap(frame, 0, 0, this.width, this.height).finally(() => frame.close());
      pictures.push(made.then((picture) => this.keep(row, picture)));
    };
    let at = 0;
    head.sizes.forEach((size, i) => {
      const type = i === 0 ? "key" : "delta";
      this.decoder!.decode(new EncodedVideoChunk({ type, timestamp: i, data: data.subarray(at, at + size) }));
      at += size;
    });
    await this.decoder.flush();
    await Promise.all(pictures);
    if (this.broken) throw this.broken;
  }

  private keep(row: number, picture: Picture): void {
    this.kept.set(row, picture);
    // The one that is waited for is shown at once, the rest of its group comes after it.
    if (row === this.wanted) void this.paint();
    const most = Math.max(80, KEPT_BYTES / (this.width * this.height * 4));
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
