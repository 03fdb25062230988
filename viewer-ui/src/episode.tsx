// One episode: its cameras in a grid, the ruler, its plots, all at one time.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import * as actions from "./actions";
import { Camera, isSettled } from "./cameras";
import { clock } from "./clock";
import { type EpisodeInfo, type Finding, type Marks, named, set, type SignalInfo, spoken, state, useModel } from "./model";
import { RecordingCounts } from "./list";
import { groupsOf, type Held, keyOf, numbersOf, Plot } from "./plots";
import { Ruler } from "./ruler";
import { siteName } from "./site";
import { getJson, soundAddress, videoAddress } from "./wire";

const NO_MARKS: Marks = { events: [], gaps: [] };

export function useEpisode(id: string | null): { info: EpisodeInfo | null; failure: string; reload: () => void } {
  const model = useModel();
  const [info, setInfo] = useState<EpisodeInfo | null>(null);
  const [failure, setFailure] = useState("");
  const [turn, setTurn] = useState(0);
  const growing = info?.is_unfinished && info.id === id ? JSON.stringify(model.live?.recordings) + model.live?.generation : "";
  // Not after the next picture of the screen, as other effects: everything of an episode waits for this.
  useLayoutEffect(() => {
    if (!id) return setInfo(null);
    const abort = new AbortController();
    getJson<EpisodeInfo>("episode", { episode: id }, abort.signal)
      .then((found) => {
        setInfo((before) => (JSON.stringify(before) === JSON.stringify(found) ? before : found));
        setFailure("");
      })
      .catch((error) => {
        if (error.name === "AbortError") return;
        setInfo(null);
        setFailure(`${error.message} ${error.hint ?? ""}`);
      });
    return () => abort.abort();
  }, [id, turn, growing]);
  // Until the next one is here, the one before stays: nothing blinks.
  return { info: id ? info : null, failure, reload: () => setTurn((n) => n + 1) };
}

/** The events and gaps of an episode, in nanoseconds since its start; null until they are here. */
function useMarks(info: EpisodeInfo | null): Marks | null {
  const [found, setFound] = useState<{ of: string; marks: Marks } | null>(null);
  // The marks of another episode, or of other bounds, would stand at wrong times.
  const of = info ? `${info.id} ${info.start_ns}` : "";
  useEffect(() => {
    if (!info) return;
    const base = BigInt(info.start_ns);
    const abort = new AbortController();
    const rest = (text: string): number => Number(BigInt(text) - base);
    getJson<{ events: { signal: number; at_ns: string; text: string }[]; gaps: { signal: number; from_ns: string; to_ns: string }[] }>(
      "events", { episode: info.id }, abort.signal,
    )
      .then((found) =>
        setFound({
          of,
          marks: {
            events: found.events.map((each) => ({ ...each, at: rest(each.at_ns) })),
            gaps: found.gaps.map((each) => ({ signal: each.signal, from: rest(each.from_ns), to: rest(each.to_ns) })),
          },
        }),
      )
      .catch(actions.complain);
    return () => abort.abort();
  }, [info]);
  return found?.of === of ? found.marks : null;
}

export function EpisodePage() {
  const model = useModel();
  const { info, failure, reload } = useEpisode(model.episodeId);
  const other = useEpisode(model.otherId);
  const marks = useMarks(info);
  const otherMarks = useMarks(other.info);
  const [trim, setTrim] = useState<{ from: number; to: number } | null>(null);
  actions.open.info = info;
  actions.open.reload = reload;
  actions.open.trim = trim;
  actions.open.setTrim = setTrim;
  actions.open.marks = marks;

  // Before anything below is drawn: the clock belongs to this episode.
  const opened = useRef("");
  const key = info ? `${info.id} ${info.start_ns} ${info.stop_ns}` : "";
  if (info && opened.current !== key) {
    const follows = opened.current.startsWith(`${info.id} `) && info.is_unfinished && clock.at >= clock.length;
    const isOther = !opened.current.startsWith(`${info.id} `);
    opened.current = key;
    clock.open(BigInt(info.start_ns), BigInt(info.stop_ns), !isOther);
    if (isOther) clock.at = info.is_unfinished ? clock.length : firstSight(info);
    clock.wanted?.();
    clock.wanted = null;
    if (follows) clock.at = clock.length;
  }

  useEffect(() => set({}), [info]); // what else tells of the open episode is drawn again
  useEffect(() => setTrim(null), [key]);
  useEffect(() => clock.tell(), [key]);
  useEffect(() => void (marks && actions.marksCame()), [marks]);

  if (failure) return <main class="centre"><div class="blank"><p class="failure" role="alert">{failure}</p><p class="dim">Choose another episode in the list.</p></div></main>;
  if (!info && model.dataset?.episodes === 0 && model.dataset.is_root && !model.live?.recordings.length)
    return (
      <main class="centre">
        <div class="blank">
          <p>Nothing was recorded into this root so far. From Python:</p>
          <pre class="sample">{`import warpdata as wd\n\nwith wd.record(${JSON.stringify(model.dataset.name)}) as rec:\n    rec.append("joints", [0.1, 0.2])`}</pre>
        </div>
      </main>
    );
  if (!info) return <main class="centre">{!model.episodeId && model.where && <p class="blank">Choose an episode.</p>}</main>;
  return (
    <main class="centre" data-episode={info.id}>
      <EpisodeBar info={info} trim={trim} />
      {other.info && (
        <div class="which two">
          {[info, other.info].map((each) => <p key={each.id} class="cut"><strong>{named(each.id)}</strong> <span class="dim">{taskOf(each)} · {lengthOf(each)}</span></p>)}
        </div>
      )}
      <div class={other.info ? "stage two" : "stage"}>
        <Cameras info={info} isFirst />
        {other.info && <Cameras info={other.info} />}
      </div>
      <Controls info={info} />
      <Ruler marks={marks ?? NO_MARKS} findings={info.findings ?? []} trim={trim} />
      <div class={other.info ? "lower two" : "lower"}>
        <Plots info={info} marks={marks ?? NO_MARKS} />
        {other.info && <Plots info={other.info} marks={otherMarks ?? NO_MARKS} />}
      </div>
    </main>
  );
}

/** The first moment at which every camera has a frame. */
function firstSight(info: EpisodeInfo): number {
  const firsts = info.signals.filter((each) => each.shows === "camera" && each.first_ns).map((each) => Number(BigInt(each.first_ns!) - BigInt(info.start_ns)));
  return Math.max(0, ...firsts);
}

const taskOf = (info: EpisodeInfo): string => (typeof info.static.task === "string" ? info.static.task : "");
const lengthOf = (info: EpisodeInfo): string =>
  spoken(Number(BigInt(info.stop_ns) - BigInt(info.start_ns))) + (info.steps ? ` · ${info.steps.count} steps` : "");

function EpisodeBar({ info, trim }: { info: EpisodeInfo; trim: { from: number; to: number } | null }) {
  const { dataset, otherId } = useModel();
  const refusal = info.is_unfinished ? "the recording goes on" : dataset?.refusal;
  const button = (label: string, key: string, run: () => unknown, off = false, isOn?: boolean) => (
    <button disabled={Boolean(refusal) || off} aria-pressed={isOn} title={refusal ?? `${label} (${key})`} onClick={() => run()}>{label}</button>
  );
  return (
    <header class="episode-bar">
      <h1 title={info.id}>{named(info.id)}</h1>
      <span class="dim cut" title={taskOf(info)}>{taskOf(info)}</span>
      <span class="dim">{lengthOf(info)}</span>
      {info.is_unfinished && <span class="badge bad">recording</span>}
      {info.is_unfinished && <RecordingCounts id={info.id} />}
      {badgesOf(info).map(([rule, found]) => (
        <span key={rule} class={`badge ${found[0]!.severity === "damaged" ? "bad" : "warn"}`} title={found.map((each) => `${each.signal ?? ""} ${each.message}`.trim()).join("\n")}>{rule}{found.length > 1 ? ` ×${found.length}` : ""}</span>
      ))}
      <span class="space" />
      {otherId && <button onClick={() => set({ otherId: null })} title="c">Close {named(otherId)}</button>}
      <span class="buttons" role="group" aria-label="Edit">
        {button("Trim", "x", actions.trim, !trim)}
        {button("Split", "s", actions.split)}
        {button("✓ success", "y", () => actions.mark("success", true), false, info.static.success === true)}
        {button("✗ failure", "n", () => actions.mark("success", false), false, info.static.success === false)}
        {button("Drop", "d", actions.drop)}
        {button("Undo", "u", actions.undo)}
        {button("Redo", "r", actions.redo)}
      </span>
    </header>
  );
}

/** What was found, the same of several signals together; damage first. */
function badgesOf(info: EpisodeInfo): [string, Finding[]][] {
  const found = new Map<string, Finding[]>();
  const order = (each: Finding): number => Number(each.severity !== "damaged");
  for (const each of [...(info.findings ?? [])].sort((a, b) => order(a) - order(b)))
    if (each.severity !== "info") found.set(each.rule, [...(found.get(each.rule) ?? []), each]);
  return [...found].slice(0, 4);
}

/** Drawn, not typed: fonts of other machines lack these signs. */
function Icon({ path }: { path: string }) {
  return <svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d={path} /></svg>;
}
const ICONS = {
  start: "M2 2h2v12H2zM14 2v12L5 8z",
  before: "M10 2v12L3 8zM11 2h2v12h-2z",
  play: "M3 1l11 7-11 7z",
  pause: "M3 2h4v12H3zM9 2h4v12H9z",
  next: "M6 2v12l7-6zM3 2h2v12H3z",
  end: "M12 2h2v12h-2zM2 2v12l9-6z",
  save: "M7 1h2v7h3l-4 4-4-4h3zM2 13h12v2H2z",
};

function Controls({ info }: { info: EpisodeInfo }) {
  const { dataset, playing, speed } = useModel();
  return (
    <div class="controls" role="group" aria-label="Time">
      <button class="quiet" aria-label="To the start" title="Home" onClick={() => clock.go(0)}><Icon path={ICONS.start} /></button>
      <button class="quiet" aria-label="Frame before" title="←" onClick={() => actions.step(-1)}><Icon path={ICONS.before} /></button>
      <button class="play" aria-label={playing ? "Pause" : "Play"} title="Space" onClick={() => clock.play()}><Icon path={playing ? ICONS.pause : ICONS.play} /></button>
      <button class="quiet" aria-label="Next frame" title="→" onClick={() => actions.step(1)}><Icon path={ICONS.next} /></button>
      <button class="quiet" aria-label="To the end" title="End" onClick={() => clock.go(clock.length)}><Icon path={ICONS.end} /></button>
      <label>
        <span class="sr">Speed</span>
        <select value={String(speed)} onChange={(event) => set({ speed: Number(event.currentTarget.value) })}>
          {[0.1, 0.25, 0.5, 1, 2, 4, 8].map((each) => <option key={each} value={String(each)}>{each}×</option>)}
        </select>
      </label>
      <WallClock />
      {info.signals.filter((each) => each.kind === "sound" && each.count > 0).map((each) => <Sound key={`${info.id}/${each.name}`} info={info} signal={each} />)}
      <button class="quiet" title="e" onClick={() => actions.nextEvent(true)}>next event</button>
      <button class="quiet" title="g" onClick={() => actions.nextGap(true)}>next gap</button>
      {info.signals.some((each) => each.role === "prediction") && (
        <button class="quiet" title="w" onClick={() => void actions.worstError().catch(actions.complain)}>worst error</button>
      )}
      {dataset?.has_moments && <button class="quiet" title="m" onClick={actions.momentsLikeThis}>moments like this</button>}
      <button class="quiet" aria-label="Zoom out" title="-" onClick={() => clock.zoom(2)}>−</button>
      <button class="quiet" title="0" onClick={() => clock.show(0, clock.length)}>all</button>
      <button class="quiet" aria-label="Zoom in" title="+" onClick={() => clock.zoom(0.5)}>+</button>
    </div>
  );
}

/** How far a sound may be from the cursor before it is moved there: less than a person hears, more than clocks differ. */
const APART_S = 0.12;

/** A sound that follows the clock of the page, and a switch for it. */
function Sound({ info, signal }: { info: EpisodeInfo; signal: SignalInfo }) {
  const { playing, speed } = useModel();
  const player = useRef<HTMLAudioElement>(null);
  const [address, setAddress] = useState("");
  const [isOn, setOn] = useState(true);
  const start = Number(BigInt(signal.first_ns!) - BigInt(info.start_ns));
  useEffect(() => void soundAddress(info.id, signal.number).then(setAddress).catch(actions.complain), [info.id, signal.count]);
  useEffect(() => {
    const follow = (): void => {
      const sound = player.current!;
      const at = (clock.at - start) / 1e9;
      const isInside = at >= 0 && at < (sound.duration || Infinity);
      sound.playbackRate = speed;
      if (isInside && Math.abs(sound.currentTime - at) > APART_S * Math.max(1, speed)) sound.currentTime = at;
      if (!isInside || !playing || !isOn) sound.pause();
      else if (sound.paused) sound.play().catch(() => undefined); // until a person has used the page
    };
    follow();
    return clock.onMove(follow);
  }, [playing, speed, isOn, start]);
  return (
    <label class="sound" title={`Play ${signal.name}`}>
      <input type="checkbox" checked={isOn} onChange={(event) => setOn(event.currentTarget.checked)} />
      <span>{signal.name}</span>
      <audio ref={player} src={address || undefined} preload="auto" data-testid="sound" data-signal={signal.name} />
    </label>
  );
}

/** Times from here on (2001) are those of a calendar; smaller ones count from when a machine was started. */
const CALENDAR_NS = 10n ** 18n;

/** When it was, where the recording knows: to be compared with what else happened that day. */
function WallClock() {
  const text = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    const tell = (): void => {
      if (!text.current) return;
      const at = clock.time;
      text.current.textContent = clock.base < CALENDAR_NS ? "" : `${new Date(Number(at / 1_000_000n)).toISOString().replace("T", " ").replace("Z", "")} UTC`;
    };
    tell();
    return clock.onMove(tell);
  });
  return <span class="dim when" ref={text} aria-label="Time of the day" />;
}

const GAP = 8;
const CAPTION = 20;
/** A camera without room for the number of its frame. */
const NARROW = 210;
/** The share of the page that cameras take at most, and on a narrow one, which scrolls; plots have the rest. */
const STAGE = 0.42;
const NARROW_STAGE = 0.62;
const NARROW_PAGE = 700;

/** One height for all, in as many lines as make the pictures largest; none is distorted. */
function arrange(box: { width: number; height: number }, ratios: number[]): { columns: number; height: number } {
  let best = { columns: ratios.length, height: 0 };
  for (let lines = 1; lines <= ratios.length; lines++) {
    const columns = Math.ceil(ratios.length / lines);
    let height = (box.height - (lines - 1) * GAP) / lines - CAPTION;
    for (let first = 0; first < ratios.length; first += columns) {
      const line = ratios.slice(first, first + columns);
      height = Math.min(height, (box.width - (line.length - 1) * GAP) / line.reduce((sum, each) => sum + each, 0));
    }
    if (Math.floor(height) > best.height) best = { columns, height: Math.floor(height) };
  }
  return best;
}

/** Height and width of a frame: HxW, HxWxC or CxHxW. */
function frameSize(signal: SignalInfo): [number, number] {
  const [a = 1, b = 1, c] = signal.shape;
  return c !== undefined && ![1, 3, 4].includes(c) ? [b, c] : [a, b];
}

function Cameras({ info, isFirst = false }: { info: EpisodeInfo; isFirst?: boolean }) {
  const host = useRef<HTMLDivElement>(null);
  const [box, setBox] = useState({ width: 0, height: 0 });
  const shown = useMemo(() => info.signals.filter((each) => each.shows === "camera" && each.count > 0), [info]);
  useLayoutEffect(() => {
    if (!host.current) return;
    const page = host.current.closest<HTMLElement>(".centre")!;
    const look = (): void => {
      const next = { width: host.current!.clientWidth, height: page.clientHeight * (innerWidth > NARROW_PAGE ? STAGE : NARROW_STAGE) };
      setBox((old) => (old.width === next.width && old.height === next.height ? old : next));
    };
    look();
    const watch = new ResizeObserver(look);
    watch.observe(host.current);
    watch.observe(page);
    return () => watch.disconnect();
  }, [shown.length > 0]);
  useEffect(() => {
    if (isFirst && !shown.length) actions.open.frameTimes = new Float64Array(0);
  }, [info]);
  if (!shown.length) return <p class="blank no-cameras dim">No cameras in this episode.</p>;
  const sizes = shown.map(frameSize);
  const { columns, height } = arrange(box, sizes.map(([high, wide]) => wide / high));
  const lines = Array.from({ length: Math.ceil(shown.length / columns) }, (_, line) => shown.slice(line * columns, (line + 1) * columns));
  return (
    <div class="cameras" ref={host}>
      {lines.map((line, number) => (
        <div key={number} class="line">
          {line.map((each) => {
            const [high, wide] = frameSize(each);
            const size = { height, width: Math.floor((height * wide) / high) };
            return <CameraView key={`${info.id}/${each.name}`} info={info} signal={each} size={size} leads={isFirst && each === shown[0]} />;
          })}
        </div>
      ))}
    </div>
  );
}

function CameraView({ info, signal, size, leads }: {
  info: EpisodeInfo;
  signal: SignalInfo;
  size: { width: number; height: number };
  leads: boolean;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const caption = useRef<HTMLSpanElement>(null);
  const retell = useRef<() => void>(() => undefined);
  const [failure, setFailure] = useState("");
  const base = BigInt(info.start_ns);
  useEffect(() => {
    const camera = new Camera(info.id, signal, base, (picture, row) => {
      const target = canvas.current;
      if (!target) return;
      const paint = target.getContext("2d")!;
      if (!picture) paint.clearRect(0, 0, target.width, target.height);
      else if (picture instanceof ImageData) paint.putImageData(picture, 0, 0);
      else paint.drawImage(picture, 0, 0, target.width, target.height, 0, 0, target.width, target.height);
      setFailure("");
      target.dataset.row = String(row);
      target.dataset.tsNs = row < 0 ? "" : (base + BigInt(Math.round(camera.times[row]!))).toString();
      tell();
    }, setFailure);
    const tell = (): void => {
      if (!caption.current) return;
      const row = camera.wanted;
      const age = row < 0 ? "no frame yet" : `age ${spoken(clock.at - camera.times[row]!)}`;
      const isNarrow = caption.current.closest("figure")!.clientWidth < NARROW;
      caption.current.textContent = isNarrow ? age : `${Math.max(row + 1, 0)}/${camera.times.length} · ${age}`;
    };
    const move = (): void => {
      camera.show(clock.at, state.playing);
      tell();
    };
    retell.current = tell;
    let stop = (): void => undefined;
    let isGone = false;
    camera
      .open()
      .then(() => {
        if (isGone) return;
        if (leads) actions.open.frameTimes = camera.times;
        stop = clock.onMove(move);
        move();
      })
      .catch((error) => setFailure(error.message));
    return () => {
      isGone = true;
      stop();
      camera.close();
    };
  }, [info]);
  useEffect(() => retell.current(), [size.width]);
  const [height, width] = frameSize(signal);
  return (
    <figure class="camera" style={{ width: `${size.width}px` }}>
      <canvas
        ref={canvas} width={width} height={height} role="img" aria-label={`Camera ${signal.name}`} data-testid="camera" data-signal={signal.name}
        class={size.width > width * 4 ? "pixels" : ""} style={{ width: `${size.width}px`, height: `${size.height}px` }}
      />
      {failure && <p class="failure over" role="alert">{failure}</p>}
      <figcaption>
        <strong class="cut" title={signal.name}>{signal.name}</strong>
        <span class="dim" ref={caption} />
        {signal.kind === "image" && !siteName() && (
          <a class="dim save" href={videoAddress({ episode: info.id, signal: signal.number })} download title="save the video" aria-label={`Save the video of ${signal.name}`}><Icon path={ICONS.save} /></a>
        )}
      </figcaption>
    </figure>
  );
}

/** How long values at the cursor wait for frames. */
const PATIENCE_MS = 150;

function Plots({ info, marks }: { info: EpisodeInfo; marks: Marks }) {
  const model = useModel();
  const [held, setHeld] = useState(new Map<string, Held>());
  const groups = useMemo(() => groupsOf(info), [info, model.plotOrder]);
  useEffect(() => {
    let busy = false;
    let again = false;
    let gone = false;
    const base = BigInt(info.start_ns);
    const ask = async (): Promise<void> => {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const found = await getJson<{ values: Held[] }>("at", { episode: info.id, at: base + BigInt(Math.round(clock.at)) });
        if (!gone) setHeld(new Map(found.values.map((each) => [keyOf(each), each])));
      } catch {
        // the next move asks again
      }
      busy = false;
      if (again && !gone) {
        again = false;
        setTimeout(ask, state.playing ? 60 : 0);
      }
    };
    // Frames come first: values are asked for when they are there, or take long.
    let soon = 0;
    let since = 0;
    const look = (): void => {
      soon = 0;
      if (state.playing || isSettled() || performance.now() - since > PATIENCE_MS) void ask();
      else soon = requestAnimationFrame(look);
    };
    const stop = clock.onMove(() => {
      if (soon) return;
      since = performance.now();
      soon = requestAnimationFrame(look);
    });
    void ask();
    return () => {
      gone = true;
      cancelAnimationFrame(soon);
      stop();
    };
  }, [info]);
  const texts = info.signals.filter((each) => each.shows === "text" && each.count > 0);
  const dragTo = (from: string, to: string): void => {
    if (!from || from === to) return;
    const names = groups.map((each) => each.main.name).filter((each) => each !== from);
    names.splice(names.indexOf(to), 0, from);
    set({ plotOrder: names });
  };
  const moveBy = (name: string, by: number): void => {
    const names = groups.map((each) => each.main.name);
    const at = names.indexOf(name);
    const to = Math.min(Math.max(at + by, 0), names.length - 1);
    names.splice(to, 0, ...names.splice(at, 1));
    set({ plotOrder: names });
  };
  return (
    <div class="plots">
      {info.problems.map((each) => (
        <p key={each.signal} class="failure">{each.signal}: {each.message} {each.hint}</p>
      ))}
      {groups.map((group) => (
        <Plot key={group.main.name} info={info} group={group} held={held} gaps={marks.gaps.filter((each) => numbersOf(group).has(each.signal))} onDragTo={dragTo} onMoveBy={moveBy} />
      ))}
      {texts.map((each) => (
        <section key={each.name} class="texts" aria-label={`Texts of ${each.name}`}>
          <header><strong>{each.name}</strong><span class="dim role">{each.role}</span></header>
          <p class="now">{held.get(keyOf(each))?.text ?? ""}</p>
          <ol>
            {marks.events.filter((one) => one.signal === each.number).slice(0, 200).map((one) => (
              <li key={one.at}><button class="quiet" onClick={() => clock.go(one.at)}><span class="dim">{(one.at / 1e9).toFixed(3)} s</span> {one.text}</button></li>
            ))}
          </ol>
        </section>
      ))}
      {!groups.length && !texts.length && <p class="blank dim">No signals to plot.</p>}
    </div>
  );
}
