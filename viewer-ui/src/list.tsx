// The list of episodes: only the rows that are seen exist, however many there are.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { complain, goTo, open } from "./actions";
import { isSettled } from "./cameras";
import { bytes, named, type Row, set, spoken, state, useModel } from "./model";
import { getArrays, getJson, Refused } from "./wire";

const ROW = 56;
const PAGE = 100;
const MOST_PATIENCE_MS = 5000;
/** Frames that wait, and room on the disk, from which on it is a warning. */
const MANY_WAIT = 60;
const LITTLE_BYTES = 2 * 1024 ** 3;

interface Page {
  generation: number;
  total: number;
  start: number;
  rows: Row[];
  live: Row[];
}

const thumbnails = new Map<string, Promise<ImageData | null>>();
let thumbnailsBusy = 0;
const thumbnailsWaiting: (() => void)[] = [];

let seen: Promise<void> | null = null;
/** Until the episode that is open shows its frames and plots: over a network it must not share the line with small pictures. */
function firstSight(): Promise<void> {
  const isThere = (): boolean => isSettled() && document.querySelector(".camera canvas[data-row], .no-cameras") !== null && document.querySelector(".chart[data-points]") !== null;
  seen ??= new Promise((resolve) => {
    const until = performance.now() + MOST_PATIENCE_MS;
    const look = (): void => void (isThere() || performance.now() > until ? resolve() : setTimeout(look, 50));
    look();
  });
  return seen;
}

async function loadThumbnail(id: string, at?: string): Promise<ImageData | null> {
  if (!state.dataset?.is_here) await firstSight();
  if (thumbnailsBusy >= 4) await new Promise<void>((resolve) => thumbnailsWaiting.push(resolve));
  thumbnailsBusy++;
  try {
    const pixels = (await getArrays("thumbnail", { episode: id, at })).arrays.pixels;
    if (!pixels) return null;
    const [height = 0, width = 0, colours = 1] = pixels.shape;
    const image = new ImageData(width, height);
    for (let i = 0; i < width * height; i++)
      for (let c = 0; c < 4; c++)
        image.data[i * 4 + c] = c === 3 ? 255 : pixels.data[i * colours + (colours === 1 ? 0 : c)]!;
    return image;
  } catch {
    return null;
  } finally {
    thumbnailsBusy--;
    thumbnailsWaiting.shift()?.();
  }
}

export function Thumbnail({ id, version, at }: { id: string; version: number; at?: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    let gone = false;
    const key = `${id}@${version} ${at ?? ""}`;
    if (!thumbnails.has(key)) thumbnails.set(key, loadThumbnail(id, at));
    void thumbnails.get(key)!.then((image) => {
      if (gone || !image || !canvas.current) return;
      canvas.current.width = image.width;
      canvas.current.height = image.height;
      canvas.current.getContext("2d")!.putImageData(image, 0, 0);
    });
    return () => {
      gone = true;
    };
  }, [id, version, at]);
  return <canvas ref={canvas} class="thumbnail" width={64} height={48} aria-hidden="true" />;
}

export function EpisodeList() {
  const model = useModel();
  const box = useRef<HTMLDivElement>(null);
  const [pages, setPages] = useState(new Map<number, Page>());
  const [total, setTotal] = useState(0);
  const [live, setLive] = useState<Row[]>([]);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const asked = useRef(new Set<number>());
  const key = JSON.stringify([model.where, model.sort, model.order, model.listGeneration]);
  const latest = useRef(key);
  latest.current = key;
  const loaded = useRef("");

  async function load(page: number): Promise<void> {
    if (asked.current.has(page)) return;
    asked.current.add(page);
    const mine = key;
    try {
      const { where, sort, order } = state;
      const found = await getJson<Page>("episodes", { where, sort, order, start: page * PAGE, count: PAGE });
      if (latest.current !== mine) return;
      setTotal(found.total);
      setLive(found.live);
      // The first page of a new selection takes the place of all that were there.
      const isFirst = loaded.current !== mine;
      loaded.current = mine;
      setPages((old) => new Map(isFirst ? [] : old).set(page, found));
      if (state.whereError) set({ whereError: "" });
    } catch (error) {
      if (latest.current !== mine) return;
      if (error instanceof Refused && error.status === 400 || (error as Refused).status === 422)
        set({ whereError: `${(error as Refused).message} ${(error as Refused).hint}` });
      else complain(error);
    }
  }

  useEffect(() => {
    asked.current = new Set();
    void load(Math.floor((box.current?.scrollTop ?? 0) / ROW / PAGE));
  }, [key]);

  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 600));
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);

  const rowAt = (position: number): Row | undefined =>
    pages.get(Math.floor(position / PAGE))?.rows[position % PAGE];
  const first = Math.max(0, Math.floor(top / ROW) - 4);
  const last = Math.min(total, Math.ceil((top + height) / ROW) + 4);
  useEffect(() => {
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) if (!pages.has(page)) void load(page);
  });

  open.neighbours = () => {
    const ids: string[] = live.map((row) => row.id);
    for (const page of [...pages.keys()].sort((a, b) => a - b)) for (const row of pages.get(page)!.rows) ids.push(row.id);
    return ids;
  };

  useEffect(() => {
    if (!model.episodeId) {
      const begin = model.dataset?.selected ?? rowAt(0)?.id ?? live[0]?.id;
      if (begin) goTo(begin);
    }
  });

  // Keys walk through the list: the chosen row stays in sight.
  useEffect(() => {
    for (const [number, page] of pages) {
      const at = page.rows.findIndex((row) => row.id === model.episodeId);
      if (at < 0 || !box.current) continue;
      const y = (number * PAGE + at) * ROW;
      if (y < box.current.scrollTop) box.current.scrollTop = y;
      else if (y + ROW > box.current.scrollTop + box.current.clientHeight)
        box.current.scrollTop = y + ROW - box.current.clientHeight;
    }
  }, [model.episodeId]);

  const positions = Array.from({ length: Math.max(0, last - first) }, (_, i) => first + i);
  return (
    <nav class="list" data-testid="episode-list" aria-label="Episodes">
      <header class="list-head">
        <span>{pages.size > 0 && total.toLocaleString("en")} {pages.size === 0 ? "" : model.where && !model.whereError ? "found" : total === 1 ? "episode" : "episodes"}</span>
        <label>
          <span class="sr">Sort by</span>
          <select value={model.sort} onChange={(event) => set({ sort: event.currentTarget.value })}>
            <option value="">recorded order</option>
            {["length", "duration_s", "task", "success", "total_reward", "recorded_ns"].map((name) => (
              <option key={name} value={name}>{name}</option>
            ))}
          </select>
        </label>
        <button
          class="quiet" aria-label={model.order === "up" ? "Ascending" : "Descending"} title="Turn the order around"
          onClick={() => set({ order: state.order === "up" ? "down" : "up" })}
        >{model.order === "up" ? "↑" : "↓"}</button>
      </header>
      {live.map((row) => <LiveRow key={row.id} row={row} />)}
      <div
        class="rows" ref={box} role="listbox" aria-label="Episodes" tabIndex={0}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      >
        <div class="rows-height" style={{ height: `${total * ROW}px` }}>
          {positions.map((position) => {
            const row = rowAt(position);
            return (
              <div
                key={row?.id ?? position} class={`row${row?.id === model.episodeId ? " chosen" : ""}`}
                role="option" aria-selected={row?.id === model.episodeId} data-testid={row ? "episode-row" : undefined}
                data-id={row?.id} style={{ transform: `translateY(${position * ROW}px)` }}
                onClick={(event) => row && (event.shiftKey ? set({ otherId: row.id }) : goTo(row.id))}
              >
                {row && <RowBody row={row} version={pages.get(Math.floor(position / PAGE))!.generation} />}
              </div>
            );
          })}
        </div>
        {total === 0 && pages.size > 0 && (
          <p class="blank">
            {model.where ? <>No episode satisfies the filter.<br /><button class="link" onClick={() => set({ where: "" })}>Show all</button></> : live.length ? "" : "No episodes yet: record one, and it appears here."}
          </p>
        )}
      </div>
    </nav>
  );
}

function RowBody({ row, version }: { row: Row; version: number }) {
  const { checks } = useModel();
  const far = checks?.far[row.id];
  const worst = row.problems?.length ? "damaged" : (checks ? checks.worst[row.id] : row.worst);
  return (
    <>
      <Thumbnail id={row.id} version={version} />
      <div class="row-text">
        <strong title={row.id}>{named(row.id)}</strong>
        <span class="dim cut">{row.task ?? ""}</span>
      </div>
      <div class="row-side">
        <span>{row.duration_s == null ? "" : `${row.duration_s.toFixed(1)} s`}</span>
        <span>
          {far && <span class="flag far" title={`far from the others in ${far.join(", ")}`} aria-label="outlier">◇</span>}
          {worst && worst !== "info" && <span class={`flag ${worst}`} title={`check: ${worst}`} aria-label={worst}>{worst === "damaged" ? "✖" : "⚠"}</span>}
          {row.success === true && <span class="flag good" title="success" aria-label="success">✓</span>}
          {row.success === false && <span class="flag" title="failure" aria-label="failure">✗</span>}
        </span>
      </div>
    </>
  );
}

/** How a recording under way is doing: what waits, what was lost, how much room there is. */
export function RecordingCounts({ id }: { id: string }) {
  const { live } = useModel();
  const found = live?.recordings.find((each) => each.id === id);
  if (!found) return null;
  const waiting = Object.values(found.backlog ?? {}).reduce((a, b) => a + b, 0);
  const count = (name: string, value: number | undefined, title: string, isBad: boolean) =>
    value === undefined ? null : <span class={isBad && value > 0 ? "bad" : ""} data-count={name} data-value={value} title={title}><b>{value.toLocaleString("en")}</b> {name}</span>;
  const blocked = found.blocked_ns ? ` (${spoken(found.blocked_ns)} in all)` : "";
  return (
    <span class="counts dim">
      {count("waiting", waiting, "frames that wait for the encoder", waiting > MANY_WAIT)}
      {count("dropped", found.dropped, "frames that the policy of a camera dropped", true)}
      {count("refused", found.refused, "values that the recorder refused: they are not in the recording", true)}
      {count("blocked", found.blocked, `calls that had to wait for the encoder${blocked}`, true)}
      {live?.free_bytes !== undefined && <span class={live.free_bytes < LITTLE_BYTES ? "bad" : ""} data-count="free" data-value={live.free_bytes} title="space left on the disk"><b>{bytes(live.free_bytes)}</b> free</span>}
    </span>
  );
}

function LiveRow({ row }: { row: Row }) {
  const { live, episodeId } = useModel();
  const found = live?.recordings.find((each) => each.id === row.id);
  const records = Object.values(found?.records ?? {}).reduce((a, b) => a + b, 0);
  return (
    <button
      class={`row live${row.id === episodeId ? " chosen" : ""}`} data-testid="episode-row" data-id={row.id} data-live="true"
      data-records={records} onClick={() => goTo(row.id)}
    >
      <span class={found?.is_live ? "record-dot" : "record-dot off"} aria-hidden="true" />
      <span class="row-text">
        <strong>{named(row.id)} · {found?.is_live ? "recording" : "not finished"}</strong>
        <span class="dim">{records.toLocaleString("en")} records{found?.lost && !found.is_live ? `, ${found.lost} unreadable` : ""}</span>
        <RecordingCounts id={row.id} />
      </span>
    </button>
  );
}
