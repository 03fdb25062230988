// Plots of signals on the shared axis of time: truth solid, prediction dashed, uncertainty a band.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "./clock";
import { colourOf, type EpisodeInfo, type Marks, set, short, type SignalInfo, spoken, state, useModel } from "./model";
import { getArrays } from "./wire";

export const LEFT = 72;
export const RIGHT = 16;
const HEIGHT = 112;
const MAX_LEGEND = 16;

export interface Held {
  signal: number;
  is_residual?: boolean;
  row: number;
  age_ns?: number;
  values?: (number | null)[];
  text?: string;
}

/** What tells a signal from the residual of it. */
export const keyOf = (each: { signal: number; is_residual?: boolean } | SignalInfo): string =>
  `${"signal" in each ? each.signal : each.number}${each.is_residual ? " residual" : ""}`;

/** Whose colours a signal has: a residual has those of what was predicted. */
const shadeOf = (signal: SignalInfo): string => (signal.is_residual ? (signal.of ?? signal.name) : signal.name);

/** A plot is one signal, with what models said of it. */
export interface Group {
  main: SignalInfo;
  predictions: SignalInfo[];
  uncertainties: SignalInfo[];
}

/** The signals a plot is made of. */
export const numbersOf = (group: Group): Set<number> => new Set([group.main, ...group.predictions, ...group.uncertainties].map((each) => each.number));

const ROLE_ORDER = ["observation", "action", "reward", "terminated", "truncated", "prediction", "uncertainty", "residual", "other"];

export function groupsOf(info: EpisodeInfo): Group[] {
  const plots = info.signals.filter((each) => each.shows === "plot" && each.count > 0);
  const mains = new Map(plots.filter((each) => each.role !== "prediction" && each.role !== "uncertainty").map((each) => [each.name, each]));
  const taken = new Set<SignalInfo>();
  const groups: Group[] = [];
  for (const main of mains.values()) {
    const of = (role: string) => plots.filter((each) => each.role === role && each.of === main.name && each.shape.join() === main.shape.join());
    const group = { main, predictions: of("prediction"), uncertainties: of("uncertainty") };
    [main, ...group.predictions, ...group.uncertainties].forEach((each) => taken.add(each));
    groups.push(group);
  }
  for (const left of plots) if (!taken.has(left)) groups.push({ main: left, predictions: [], uncertainties: [] });
  for (const each of plots)
    if (each.has_residual) groups.push({ main: { ...each, name: `${each.name} − ${each.of}`, role: "residual", is_residual: true, dtype: "float64" }, predictions: [], uncertainties: [] });
  const place = (each: Group) => {
    const moved = state.plotOrder.indexOf(each.main.name);
    return moved >= 0 ? moved - 1000 : ROLE_ORDER.indexOf(each.main.role);
  };
  return groups.map((each, i) => [each, i] as const).sort(([a, i], [b, j]) => place(a) - place(b) || i - j).map(([each]) => each);
}

const channelsOf = (signal: SignalInfo): number => Math.min(64, Math.max(1, signal.shape.reduce((a, b) => a * b, 1)));
export function channelName(signal: SignalInfo, channel: number): string {
  return signal.names?.[channel] ?? (channelsOf(signal) === 1 ? signal.name : String(channel));
}

interface Points {
  times: Float64Array;
  values: Float32Array | Float64Array;
  channels: number;
  exact: boolean;
}

async function pointsOf(info: EpisodeInfo, signal: SignalInfo, width: number, abort: AbortSignal): Promise<Points> {
  const base = BigInt(info.start_ns);
  const found = await getArrays(
    "points",
    {
      episode: info.id, signal: signal.number, residual: signal.is_residual ? 1 : undefined, base, width: Math.max(1, Math.round(width)),
      from: base + BigInt(Math.floor(clock.from)), to: base + BigInt(Math.ceil(clock.to)),
    },
    abort,
  );
  const values = found.arrays.values!;
  return {
    times: found.arrays.times!.data as Float64Array, values: values.data as Float32Array,
    channels: values.shape[0]!, exact: found.head.exact === true,
  };
}

function column(points: Points, channel: number): (number | null)[] {
  const count = points.times.length;
  const out = new Array<number | null>(count);
  for (let i = 0; i < count; i++) {
    const value = points.values[channel * count + i]!;
    out[i] = Number.isNaN(value) ? null : value;
  }
  return out;
}

const inSeconds = (times: Float64Array): number[] => Array.from(times, (each) => each / 1e9);

/** All points of a group on one axis: joined where models have clocks of their own. */
function joined(group: Group, found: Map<number, Points>): uPlot.AlignedData {
  const tables: uPlot.AlignedData[] = [];
  const main = found.get(group.main.number)!;
  const count = channelsOf(group.main);
  tables.push([inSeconds(main.times), ...Array.from({ length: count }, (_, c) => column(main, c))]);
  for (const prediction of group.predictions) {
    const points = found.get(prediction.number)!;
    tables.push([inSeconds(points.times), ...Array.from({ length: count }, (_, c) => column(points, c))]);
  }
  for (const [uncertainty, prediction] of bandsOf(group)) {
    const spread = found.get(uncertainty.number)!;
    const middle = found.get(prediction.number)!;
    const holds = heldAt(spread.times, middle.times);
    const edges = (sign: number) =>
      Array.from({ length: count }, (_, c) => {
        const by = column(spread, c);
        return column(middle, c).map((around, i) => {
          const wide = by[holds[i]!] ?? null;
          return around === null || wide === null ? null : around + sign * wide;
        });
      });
    tables.push([inSeconds(middle.times), ...edges(1), ...edges(-1)]);
  }
  return tables.length === 1 ? tables[0]! : uPlot.join(tables);
}

/** Of each time the last entry at or before it, -1 before the first: models may have clocks of their own. */
function heldAt(times: Float64Array, wanted: Float64Array): Int32Array {
  const found = new Int32Array(wanted.length);
  let at = -1;
  for (let i = 0; i < wanted.length; i++) {
    while (at + 1 < times.length && times[at + 1]! <= wanted[i]!) at++;
    found[i] = at;
  }
  return found;
}

function bandsOf(group: Group): [SignalInfo, SignalInfo][] {
  return group.uncertainties.map((each) => [each, group.predictions.find((one) => one.model === each.model) ?? group.main]);
}

/** Charts of each signal that are on the page now, with the values they show: two episodes side by side have one axis. */
const charts = new Map<string, Map<uPlot, [number, number] | null>>();

/** The least and the greatest of all charts of a signal. */
function extentOf(name: string, self: uPlot, low: number | null, high: number | null): [number | null, number | null] {
  const all = charts.get(name) ?? new Map<uPlot, [number, number] | null>();
  all.set(self, low === null || high === null ? null : [low, high]);
  charts.set(name, all);
  const known = [...all.values()].filter((each) => each !== null);
  return known.length ? [Math.min(...known.map((each) => each[0])), Math.max(...known.map((each) => each[1]))] : [null, null];
}

/** Draw the other charts of a signal again: the axis they share may have changed. */
function shareAxis(name: string, self: uPlot): void {
  for (const other of charts.get(name)?.keys() ?? []) if (other !== self) other.setData(other.data);
}

/** What the axis shows: a little more than there is, and something on both sides of what never changes. */
function rangeOf(signal: SignalInfo, low: number | null, high: number | null): uPlot.Range.MinMax {
  if (low === null || high === null || signal.dtype === "bool") return [-0.1, 1.1];
  if (low === high) return [low - (Math.abs(low) / 2 || 1), low + (Math.abs(low) / 2 || 1)];
  return uPlot.rangeNum(low, high, 0.1, true);
}

/** A value of a flag or a count holds until the next one. */
const isHeld = (signal: SignalInfo): boolean => /^(bool|u?int)/.test(signal.dtype);

/** A line is drawn from record to record, but not where records are missing. */
function seriesOf(group: Group, hidden: Set<string>, gapsNow: () => Marks["gaps"]): { series: uPlot.Series[]; bands: uPlot.Band[] } {
  const count = channelsOf(group.main);
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  const line = (of: SignalInfo, c: number, more: Partial<uPlot.Series>): uPlot.Series => ({
    show: !hidden.has(`${group.main.name}#${c}`), stroke: colourOf(shadeOf(group.main), c), width: 1.25, points: { show: false },
    gaps: (self, _series, _first, _last, found) => (isHeld(group.main) ? found : [...found, ...cutsOf(self, gapsNow().filter((each) => each.signal === of.number))]),
    ...(isHeld(group.main) && { paths: uPlot.paths.stepped!({ align: 1 }) }), ...more,
  });
  for (let c = 0; c < count; c++) series.push(line(group.main, c, {}));
  for (const each of group.predictions) for (let c = 0; c < count; c++) series.push(line(each, c, { dash: [5, 4] }));
  for (const [, around] of bandsOf(group)) {
    const start = series.length;
    for (const _side of [0, 1]) for (let c = 0; c < count; c++) series.push(line(around, c, { width: 0 }));
    for (let c = 0; c < count; c++)
      bands.push({ series: [start + c, start + count + c], fill: `${colourOf(group.main.name, c)}2e` });
  }
  return { series, bands };
}

/** Gaps as the chart wants them: pixels of its canvas. */
function cutsOf(self: uPlot, gaps: Marks["gaps"]): [number, number][] {
  const place = (at: number): number => Math.round(self.valToPos(at / 1e9, "x", true));
  const [from, to] = [Math.max(clock.from, 0), clock.to];
  return gaps.filter((each) => each.to > from && each.from < to).map((each) => [place(Math.max(each.from, from)), place(Math.min(each.to, to))]);
}

export function Plot({ info, group, held, gaps, onDragTo, onMoveBy }: {
  info: EpisodeInfo;
  group: Group;
  held: Map<string, Held>;
  gaps: Marks["gaps"];
  onDragTo: (from: string, to: string) => void;
  onMoveBy: (name: string, by: number) => void;
}) {
  const model = useModel();
  const box = useRef<HTMLDivElement>(null);
  const line = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  // A recording that grows brings a new `info` twice a second: the chart stays, its points are loaded again.
  const latest = useRef({ info, group, gaps });
  latest.current = { info, group, gaps };
  const reload = useRef<() => void>(() => undefined);
  const loaded = useRef<EpisodeInfo | null>(null);
  const [failure, setFailure] = useState("");
  const [exact, setExact] = useState(true);
  const name = group.main.name;
  const folded = model.hidden.has(name);

  useLayoutEffect(() => {
    if (folded || !box.current) return;
    const text = getComputedStyle(document.documentElement);
    const dim = text.getPropertyValue("--dim").trim();
    const grid = text.getPropertyValue("--grid").trim();
    const host = box.current;
    delete host.dataset.points;
    const { series, bands } = seriesOf(group, state.hidden, () => latest.current.gaps);
    const axis = { stroke: dim, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const made = new uPlot(
      {
        width: host.clientWidth, height: HEIGHT, series, bands, legend: { show: false }, padding: [8, RIGHT, 0, 0],
        scales: {
          x: { time: false, auto: false, range: () => [clock.from / 1e9, clock.to / 1e9] },
          y: { range: (self: uPlot, low: number | null, high: number | null) => rangeOf(group.main, ...extentOf(name, self, low, high)) },
        },
        axes: [{ ...axis, size: 4, values: () => [] }, { ...axis, size: LEFT, space: 20, values: (_, ticks) => ticks.map((each) => short(each)), gap: 6 }],
        cursor: { show: true, x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
        hooks: {
          drawClear: [
            (self: uPlot) => {
              self.ctx.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--gap").trim();
              const { gaps, group } = latest.current;
              for (const [from, to] of cutsOf(self, gaps.filter((each) => each.signal === group.main.number))) self.ctx.fillRect(from, self.bbox.top, Math.max(1, to - from), self.bbox.height);
            },
          ],
          setSelect: [
            (self: uPlot) => {
              if (self.select.width > 4)
                clock.show(self.posToVal(self.select.left, "x") * 1e9, self.posToVal(self.select.left + self.select.width, "x") * 1e9);
              self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      [[], ...series.slice(1).map(() => [])] as unknown as uPlot.AlignedData,
      host,
    );
    chart.current = made;
    const over = made.over;
    const detach = gestures(over, () => over.clientWidth);
    let abort = new AbortController();
    let timer = 0;
    let isBusy = false;
    let isStale = false;
    const load = async (): Promise<void> => {
      abort.abort();
      abort = new AbortController();
      const mine = abort.signal;
      const { info, group } = latest.current;
      loaded.current = info;
      isBusy = true;
      try {
        const all = [group.main, ...group.predictions, ...group.uncertainties];
        const parts = await Promise.all(all.map((each) => pointsOf(info, each, host.clientWidth - LEFT - RIGHT, mine)));
        if (mine.aborted) return;
        made.setData(joined(group, new Map(all.map((each, i) => [each.number, parts[i]!]))));
        shareAxis(name, made);
        host.dataset.points = String(parts.reduce((sum, each) => sum + each.times.length, 0));
        setExact(parts.every((each) => each.exact));
        setFailure("");
      } catch (error) {
        if ((error as Error).name !== "AbortError") setFailure((error as Error).message);
      }
      if (mine.aborted) return; // another one took over
      isBusy = false;
      if (isStale) {
        isStale = false;
        void load();
      }
    };
    reload.current = () => {
      if (isBusy) isStale = true;
      else void load();
    };
    const zoomed = clock.onZoom(() => {
      made.redraw(false, true);
      made.setScale("x", { min: clock.from / 1e9, max: clock.to / 1e9 });
      clearTimeout(timer);
      timer = window.setTimeout(load, 40);
    });
    const watch = new ResizeObserver(() => {
      placeCursor(line.current);
      if (host.clientWidth === made.width) return;
      made.setSize({ width: host.clientWidth, height: HEIGHT });
      void load();
    });
    watch.observe(host);
    void load();
    return () => {
      abort.abort();
      clearTimeout(timer);
      zoomed();
      detach();
      watch.disconnect();
      charts.get(name)?.delete(made);
      shareAxis(name, made);
      made.destroy();
      chart.current = null;
    };
  }, [info.id, keyOf(group.main), group.predictions.length, group.uncertainties.length, folded, model.isDark]);
  useEffect(() => {
    if (loaded.current !== info) reload.current();
  }, [info]);

  useEffect(() => {
    const { series } = seriesOf(group, model.hidden, () => []);
    series.forEach((each, i) => {
      if (i > 0 && chart.current && chart.current.series[i]?.show !== each.show) chart.current.setSeries(i, { show: each.show! });
    });
  }, [model.hidden]);

  useEffect(() => chart.current?.redraw(true), [JSON.stringify(gaps)]);

  useEffect(() => {
    const move = (): void => placeCursor(line.current);
    const stops = [clock.onMove(move), clock.onZoom(move)];
    move();
    return () => stops.forEach((stop) => stop());
  }, [folded]);

  const now = held.get(keyOf(group.main));
  const count = channelsOf(group.main);
  return (
    <section
      class="plot" data-testid="plot" data-signal={name} data-episode={info.id} aria-label={`Plot of ${name}`}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => onDragTo(event.dataTransfer?.getData("text/plain") ?? "", name)}
    >
      <header draggable onDragStart={(event) => event.dataTransfer?.setData("text/plain", name)}>
        <button
          class="fold quiet" aria-expanded={!folded} aria-label={`${folded ? "Show" : "Hide"} ${name}`} title="Alt with ↑ or ↓ moves the plot" onClick={() => toggle(name)}
          onKeyDown={(event) => {
            if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
            event.preventDefault();
            onMoveBy(name, event.key === "ArrowUp" ? -1 : 1);
          }}
        >
          {folded ? "▸" : "▾"}
        </button>
        <strong>{name}</strong>
        <span class="dim role">{group.main.role}{group.predictions.length ? ` · ${group.predictions.map((each) => each.model ?? "model").join(", ")} dashed` : ""}</span>
        <span class="legend">
          {Array.from({ length: Math.min(count, MAX_LEGEND) }, (_, c) => (
            <button
              key={c} class={`channel quiet${model.hidden.has(`${name}#${c}`) ? " off" : ""}`} onClick={() => toggle(`${name}#${c}`)}
              aria-pressed={!model.hidden.has(`${name}#${c}`)} title="click to hide or show"
            >
              <i style={{ background: colourOf(shadeOf(group.main), c) }} />
              {count > 1 && channelName(group.main, c)} <b>{valueOf(now, c)}</b>
              {group.predictions.map((each) => <em key={each.number} class="dim" title={`${each.name} at the cursor`}>{valueOf(held.get(keyOf(each)), c)}</em>)}
            </button>
          ))}
          {count > MAX_LEGEND && <span class="dim">and {count - MAX_LEGEND} more</span>}
        </span>
        <span class="age dim" data-age={now?.age_ns} title="how old the value is that holds at the cursor">
          {now?.age_ns === undefined ? "no value yet" : `age ${spoken(now.age_ns)}`}
        </span>
        {!exact && <span class="dim" title="every pixel shows the least and the greatest of its records">min–max</span>}
      </header>
      {!folded && (
        <div class="chart" ref={box}>
          {group.main.units && <span class="unit dim">{group.main.units}</span>}
          <div class="cursor" ref={line} />
          {failure && <p class="failure">{failure}</p>}
        </div>
      )}
    </section>
  );
}

const valueOf = (held: Held | undefined, channel: number): string => (held?.values ? short(held.values[channel] ?? Number.NaN) : "–");

function toggle(key: string): void {
  const hidden = new Set(state.hidden);
  if (!hidden.delete(key)) hidden.add(key);
  set({ hidden });
}

export function placeCursor(element: HTMLElement | null): void {
  const host = element?.parentElement;
  if (!element || !host) return;
  const share = (clock.at - clock.from) / (clock.to - clock.from);
  element.style.visibility = share < 0 || share > 1 ? "hidden" : "visible";
  element.style.transform = `translateX(${LEFT + share * (host.clientWidth - LEFT - RIGHT)}px)`;
}

/** Wheel zooms, Shift and drag moves, a click sets the time, a double click shows all. */
function gestures(over: HTMLElement, width: () => number): () => void {
  const timeAt = (x: number): number => clock.from + (x / width()) * (clock.to - clock.from);
  const wheel = (event: WheelEvent): void => {
    if (!event.deltaY || !(event.ctrlKey || event.shiftKey || event.altKey)) return;
    event.preventDefault();
    clock.zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.offsetX));
  };
  let start: { x: number; from: number; to: number } | null = null;
  let downAt = 0;
  const down = (event: MouseEvent): void => {
    downAt = event.clientX;
    if (!event.shiftKey) return;
    event.stopImmediatePropagation();
    start = { x: event.clientX, from: clock.from, to: clock.to };
  };
  const move = (event: MouseEvent): void => {
    if (!start) return;
    const by = ((start.x - event.clientX) / width()) * (start.to - start.from);
    clock.show(start.from + by, start.to + by);
  };
  const up = (): void => {
    start = null;
  };
  const click = (event: MouseEvent): void => {
    if (Math.abs(event.clientX - downAt) < 4 && !event.shiftKey) clock.go(timeAt(event.offsetX), false);
  };
  const twice = (): void => clock.show(0, clock.length);
  over.addEventListener("wheel", wheel, { passive: false });
  over.addEventListener("mousedown", down, { capture: true });
  window.addEventListener("mousemove", move);
  window.addEventListener("mouseup", up);
  over.addEventListener("click", click);
  over.addEventListener("dblclick", twice);
  return () => {
    window.removeEventListener("mousemove", move);
    window.removeEventListener("mouseup", up);
  };
}
