// The ruler: where we are, what happened when, what is missing, and the handles of a trim.
import { useEffect, useRef, useState } from "preact/hooks";
import { open } from "./actions";
import { clock } from "./clock";
import { type Finding, type Marks, seconds, useModel } from "./model";
import { LEFT, placeCursor, RIGHT } from "./plots";

const HEIGHT = 48;

function tickStep(span: number, width: number): number {
  const wanted = span / Math.max(2, Math.min(12, width / 72));
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted)!;
}

/** The times in which any signal pauses, each once. */
function joined(gaps: Marks["gaps"]): { from: number; to: number }[] {
  const found: { from: number; to: number }[] = [];
  for (const { from, to } of [...gaps].sort((a, b) => a.from - b.from)) {
    const last = found.at(-1);
    if (last && from <= last.to) last.to = Math.max(last.to, to);
    else found.push({ from, to });
  }
  return found;
}

export function Ruler({ marks, findings, trim }: {
  marks: Marks;
  findings: Finding[];
  trim: { from: number; to: number } | null;
}) {
  const model = useModel();
  const host = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const cursor = useRef<HTMLDivElement>(null);
  const label = useRef<HTMLSpanElement>(null);
  const overview = useRef<HTMLDivElement>(null);
  const [, again] = useState(0);

  const xOf = (at: number): number => {
    const width = host.current!.clientWidth - LEFT - RIGHT;
    return LEFT + ((at - clock.from) / (clock.to - clock.from)) * width;
  };
  const timeOf = (x: number): number => {
    const width = host.current!.clientWidth - LEFT - RIGHT;
    return clock.from + ((x - LEFT) / width) * (clock.to - clock.from);
  };

  function draw(): void {
    const target = canvas.current;
    if (!target || !host.current) return;
    const scale = devicePixelRatio || 1;
    const width = host.current.clientWidth;
    target.width = width * scale;
    target.height = HEIGHT * scale;
    const paint = target.getContext("2d")!;
    paint.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string): string => style.getPropertyValue(name).trim();
    paint.clearRect(0, 0, width, HEIGHT);
    paint.save();
    paint.beginPath();
    paint.rect(LEFT, 16, width - LEFT, HEIGHT);
    paint.rect(0, 0, width, 16);
    paint.clip();
    paint.fillStyle = colour("--gap");
    for (const gap of joined(marks.gaps)) paint.fillRect(xOf(gap.from), 18, Math.max(1, xOf(gap.to) - xOf(gap.from)), HEIGHT - 18);
    if (trim) {
      paint.fillStyle = colour("--trimmed");
      paint.fillRect(LEFT, 18, xOf(trim.from) - LEFT, HEIGHT - 18);
      paint.fillRect(xOf(trim.to), 18, width - xOf(trim.to), HEIGHT - 18);
    }
    paint.strokeStyle = colour("--grid");
    paint.fillStyle = colour("--dim");
    paint.font = "11px system-ui, sans-serif";
    paint.textAlign = "center";
    const step = tickStep((clock.to - clock.from) / 1e9, width - LEFT - RIGHT) * 1e9;
    const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e9)));
    for (let at = Math.ceil(clock.from / step) * step; at <= clock.to; at += step) {
      const x = Math.round(xOf(at)) + 0.5;
      paint.beginPath();
      paint.moveTo(x, 16);
      paint.lineTo(x, HEIGHT);
      paint.stroke();
      paint.textAlign = x > width - 24 ? "right" : "center";
      paint.fillText(`${seconds(at, digits)} s`, Math.min(x, width - 2), 12);
    }
    paint.fillStyle = colour("--event");
    let until = -1;
    paint.textAlign = "left";
    for (const event of marks.events) {
      const x = xOf(event.at);
      if (x < LEFT - 200 || x > width) continue;
      paint.fillRect(x - 1, 20, 2, HEIGHT - 20);
      if (x > until) {
        const text = event.text.length > 28 ? `${event.text.slice(0, 27)}…` : event.text;
        paint.fillText(text, x + 4, 32);
        until = x + paint.measureText(text).width + 12;
      }
    }
    paint.fillStyle = colour("--warn");
    for (const finding of findings) {
      const at = finding.details.at_ns;
      if (typeof at !== "number" && typeof at !== "string") continue;
      const x = xOf(Number(BigInt(at) - clock.base));
      paint.beginPath();
      paint.moveTo(x - 5, HEIGHT);
      paint.lineTo(x + 5, HEIGHT);
      paint.lineTo(x, HEIGHT - 9);
      paint.fill();
    }
    paint.restore();
  }

  function move(): void {
    placeCursor(cursor.current);
    if (label.current) label.current.textContent = `${seconds(clock.at)} s`;
    cursor.current?.setAttribute("aria-valuenow", String(Math.round(clock.at / 1e6)));
    cursor.current?.setAttribute("aria-valuetext", `${seconds(clock.at)} seconds`);
    cursor.current?.setAttribute("data-time-ns", clock.time.toString());
    const bar = overview.current;
    if (bar) {
      const view = bar.firstElementChild as HTMLElement;
      view.style.left = `${(clock.from / clock.length) * 100}%`;
      view.style.width = `${((clock.to - clock.from) / clock.length) * 100}%`;
      (bar.lastElementChild as HTMLElement).style.left = `${(clock.at / clock.length) * 100}%`;
    }
  }

  useEffect(() => {
    const all = (): void => {
      draw();
      move();
      again((n) => n + 1); // the handles move with the window
    };
    const stops = [clock.onMove(move), clock.onZoom(all)];
    const watch = new ResizeObserver(all);
    watch.observe(host.current!);
    all();
    return () => {
      stops.forEach((stop) => stop());
      watch.disconnect();
    };
  }, [marks, findings, trim, model.isDark]);

  function scrub(event: PointerEvent): void {
    const target = event.currentTarget as HTMLElement;
    if ((event.target as HTMLElement).dataset.handle) return;
    target.setPointerCapture(event.pointerId);
    const to = (each: PointerEvent): void => clock.go(timeOf(each.clientX - target.getBoundingClientRect().left), false);
    to(event);
    // The raw events do not wait for the next picture of the screen; browsers without them have the others.
    const kind = "onpointerrawupdate" in target ? "pointerrawupdate" : "pointermove";
    target.addEventListener(kind, to as EventListener);
    target.onpointerup = target.onpointercancel = () => {
      target.removeEventListener(kind, to as EventListener);
      target.onpointerup = target.onpointercancel = null;
    };
  }

  function drag(event: PointerEvent, side: "from" | "to"): void {
    event.stopPropagation();
    const handle = event.currentTarget as HTMLElement;
    handle.setPointerCapture(event.pointerId);
    const left = host.current!.getBoundingClientRect().left;
    handle.onpointermove = (each) => {
      const at = Math.min(Math.max(timeOf(each.clientX - left), 0), clock.length);
      const now = open.trim ?? { from: 0, to: clock.length };
      const next = { ...now, [side]: at };
      if (next.from < next.to) open.setTrim(next);
      clock.go(at, false);
    };
    handle.onpointerup = () => {
      handle.onpointermove = handle.onpointerup = null;
    };
  }

  function brush(event: PointerEvent): void {
    const bar = event.currentTarget as HTMLElement;
    bar.setPointerCapture(event.pointerId);
    const box = bar.getBoundingClientRect();
    const to = (each: PointerEvent): void => {
      const at = ((each.clientX - box.left) / box.width) * clock.length;
      const half = (clock.to - clock.from) / 2;
      if (half * 2 < clock.length * 0.999) clock.show(at - half, at + half);
      else clock.go(at);
    };
    to(event);
    bar.onpointermove = to;
    bar.onpointerup = () => {
      bar.onpointermove = bar.onpointerup = null;
    };
  }

  const shown = trim ?? { from: 0, to: clock.length };
  const place = (at: number) => (host.current ? { transform: `translateX(${xOf(at)}px)` } : { visibility: "hidden" as const });
  const inside = (at: number): boolean => at >= clock.from && at <= clock.to;
  return (
    <div class="ruler-box">
      <div class="overview" ref={overview} onPointerDown={brush} aria-hidden="true"><i /><b /></div>
      <div class="ruler" ref={host} onPointerDown={scrub}>
        <canvas ref={canvas} aria-hidden="true" />
        {!model.dataset?.refusal && inside(shown.from) && (
          <div class="handle start" data-handle="from" style={place(shown.from)} onPointerDown={(event) => drag(event, "from")} title="drag to trim the start" />
        )}
        {!model.dataset?.refusal && inside(shown.to) && (
          <div class="handle end" data-handle="to" style={place(shown.to)} onPointerDown={(event) => drag(event, "to")} title="drag to trim the end" />
        )}
        <div
          class="cursor main" ref={cursor} data-testid="time-cursor" role="slider" tabIndex={0} aria-label="Time"
          aria-valuemin={0} aria-valuemax={Math.round(clock.length / 1e6)} aria-valuenow={0}
        ><span ref={label} /></div>
      </div>
    </div>
  );
}
