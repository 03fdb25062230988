// One time for everything on the page: the cursor, the window that plots show, and play.
import { state, set } from "./model";

type Heard = () => void;

/** Times are nanoseconds since the first record of the episode: exact in a number for a hundred days. */
class Clock {
  base = 0n;
  length = 0;
  at = 0;
  from = 0;
  to = 1;
  /** What the address bar, or a jump from elsewhere, says of time and zoom; for the episode that is opened next. */
  wanted: (() => void) | null = null;
  private readonly moved = new Set<Heard>();
  private readonly zoomed = new Set<Heard>();
  private last = 0;

  /** Take the bounds of an episode; of one that was trimmed or grew, the cursor stays at its moment. */
  open(start: bigint, stop: bigint, isSame: boolean): void {
    const at = isSame ? this.at + Number(this.base - start) : this.at;
    this.base = start;
    this.length = Math.max(1, Number(stop - start));
    this.at = Math.min(Math.max(at, 0), this.length);
    this.from = 0;
    this.to = this.length;
  }

  /** Everything that shows the time places itself again. */
  tell(): void {
    for (const each of [...this.moved]) each();
  }

  get time(): bigint {
    return this.base + BigInt(Math.round(this.at));
  }

  onMove(heard: Heard): () => void {
    this.moved.add(heard);
    return () => this.moved.delete(heard);
  }

  onZoom(heard: Heard): () => void {
    this.zoomed.add(heard);
    return () => this.zoomed.delete(heard);
  }

  go(at: number, follow = true): void {
    this.at = Math.round(Math.min(Math.max(at, 0), this.length));
    if (follow && (this.at < this.from || this.at > this.to)) {
      const width = this.to - this.from;
      const from = Math.min(Math.max(this.at - width / 10, 0), this.length - width);
      this.show(from, from + width);
    }
    this.tell();
  }

  show(from: number, to: number): void {
    const width = Math.min(Math.max(to - from, 1000), this.length);
    const start = Math.min(Math.max(from, 0), this.length - width);
    this.from = start;
    this.to = start + width;
    for (const each of [...this.zoomed]) each();
  }

  zoom(factor: number, around = this.at): void {
    const left = (around - this.from) * factor;
    const right = (this.to - around) * factor;
    this.show(around - left, around + right);
  }

  /** Move the window by a share of its width. */
  pan(share: number): void {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  play(on = !state.playing): void {
    if (on && this.at >= this.length) this.go(0);
    set({ playing: on });
    this.last = performance.now();
    if (on) requestAnimationFrame(() => this.tick());
  }

  private tick(): void {
    if (!state.playing) return;
    const now = performance.now();
    const next = this.at + (now - this.last) * 1e6 * state.speed;
    this.last = now;
    this.go(next);
    if (next >= this.length) set({ playing: false });
    else requestAnimationFrame(() => this.tick());
  }
}

export const clock = new Clock();
