// The browser's decoder over groups of encoded frames: it decodes no more than the frame that is wanted takes.

/** Encoded frames from a keyframe on, in decoding order, kept as they came. */
export interface Group {
  config: VideoDecoderConfig;
  /** Which frame of the camera each packet shows; -1 for frames that are there only to decode the others. */
  rows: number[];
  packets: Uint8Array<ArrayBuffer>[];
  bytes: number;
  /** Whether frames come out in another order than they go in: then all of them go in. */
  isReordered: boolean;
}

/** How long a frame may stay in a decoder that has all it takes; then it is made to give out everything. */
const PATIENCE_MS = 100;

export class GroupDecoder {
  private decoder: VideoDecoder | null = null;
  private config: VideoDecoderConfig | null = null;
  /** What went in since the last keyframe: going on from there is cheaper than beginning again. */
  private fed: { group: Group; next: number } | null = null;
  private stamp = 0;
  private readonly rows = new Map<number, number>();
  private waiting: { row: number; end: (error?: Error) => void } | null = null;

  /** `out` gets every frame that has a row, and must close it. */
  constructor(private readonly out: (frame: VideoFrame, row: number) => void) {}

  /** Decode until `row`, and `ahead` frames more, came out. */
  async decode(group: Group, row: number, ahead: number): Promise<void> {
    await this.configure(group.config);
    const at = group.rows.indexOf(row);
    if (this.fed?.group !== group || this.fed.next > at) this.fed = { group, next: 0 };
    const stop = group.isReordered ? group.packets.length : Math.min(group.packets.length, at + 1 + ahead);
    const came = new Promise<void>((resolve, reject) => {
      this.waiting = { row, end: (error) => (error ? reject(error) : resolve()) };
    });
    came.catch(() => undefined);
    const decoder = this.decoder!;
    for (let packet = this.fed.next; packet < stop; packet++) {
      this.rows.set(this.stamp, group.rows[packet]!);
      const type = packet === 0 ? "key" : "delta";
      decoder.decode(new EncodedVideoChunk({ type, timestamp: this.stamp++, data: group.packets[packet]! }));
    }
    this.fed.next = stop;
    let timer = 0;
    if (stop < group.packets.length) {
      const late = new Promise<"late">((resolve) => (timer = window.setTimeout(() => resolve("late"), PATIENCE_MS)));
      const first = await Promise.race([came, late]).finally(() => clearTimeout(timer));
      if (first !== "late") return;
    }
    this.fed = null; // behind this only a keyframe may follow
    await decoder.flush();
    this.waiting = null;
  }

  close(): void {
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
    this.waiting?.end(new Error("closed"));
  }

  private async configure(config: VideoDecoderConfig): Promise<void> {
    if (this.decoder?.state === "configured" && this.config === config) return;
    if (!(await VideoDecoder.isConfigSupported(config)).supported) throw new Error("not supported");
    if (this.decoder && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = new VideoDecoder({
      output: (frame) => this.take(frame),
      error: (error) => this.waiting?.end(error),
    });
    this.decoder.configure(config);
    this.config = config;
    this.fed = null;
  }

  private take(frame: VideoFrame): void {
    const row = this.rows.get(frame.timestamp) ?? -1;
    this.rows.delete(frame.timestamp);
    if (row < 0) frame.close();
    else this.out(frame, row);
    if (this.waiting && row === this.waiting.row) {
      this.waiting.end();
      this.waiting = null;
    }
  }
}
