// What a person can do, once for buttons, menus and keys.
import { clock } from "./clock";
import { type DatasetInfo, type EpisodeInfo, type Marks, named, say, set, state } from "./model";
import { getJson, post, Refused } from "./wire";

/** What is open now; pages register what keys need to know of them. */
export const open: {
  info: EpisodeInfo | null;
  marks: Marks | null;
  frameTimes: Float64Array;
  trim: { from: number; to: number } | null;
  neighbours: () => string[];
  setTrim: (trim: { from: number; to: number } | null) => void;
  reload: () => void;
} = {
  info: null,
  marks: null,
  frameTimes: new Float64Array(0),
  trim: null,
  neighbours: () => [],
  setTrim: () => undefined,
  reload: () => undefined,
};

export function complain(error: unknown): void {
  if ((error as Error).name === "AbortError") return;
  if (error instanceof Refused) say(error.message, error.hint, true);
  else say((error as Error).message ?? String(error), "", true);
}

let turn = 0;
export async function loadDataset(): Promise<void> {
  const mine = ++turn;
  const dataset = await getJson<DatasetInfo>("dataset", {});
  if (mine !== turn) return;
  // The list asks for its first rows by itself, at the same time: only what changed later is asked again.
  set({ dataset, listGeneration: state.listGeneration + (state.dataset ? 1 : 0) });
  void learnColumns(mine).catch(complain);
}

/** The rows are here before everything is known of all episodes; what the filter can name comes when it is. */
async function learnColumns(mine: number): Promise<void> {
  while (mine === turn && !state.dataset!.has_facts) {
    await new Promise((resolve) => setTimeout(resolve, 700));
    const { columns, has_facts } = await getJson<DatasetInfo>("dataset", {});
    if (mine === turn && has_facts) set({ dataset: { ...state.dataset!, columns, has_facts } });
  }
}

export function goTo(episodeId: string | null): void {
  if (episodeId === state.episodeId) return;
  jumpAsked = null;
  set({ episodeId, playing: false });
}

/** An episode at a time: this one, or another that is opened for it. */
export function goAt(episodeId: string, at: bigint): void {
  const there = (): void => clock.go(Number(at - clock.base));
  if (episodeId === state.episodeId) return there();
  clock.wanted = () => {
    clock.at = Math.min(Math.max(Number(at - clock.base), 0), clock.length);
  };
  goTo(episodeId);
}

/** Ask for moments like the one at the cursor; an index may have been made since the page was opened. */
export async function momentsLikeThis(): Promise<void> {
  if (!state.dataset?.has_moments) await loadDataset().catch(complain);
  if (!state.dataset?.has_moments) return say("no vector index of these episodes", "Make one with wd.TrajectoryIngestor, beside the root or published with the dataset.");
  if (open.info) set({ drawer: "moments", momentsOf: { episode: open.info.id, at: clock.time } });
}

export function neighbour(by: number): void {
  const ids = open.neighbours();
  if (!ids.length) return;
  const at = state.episodeId ? ids.indexOf(state.episodeId) : -1;
  const next = at < 0 ? (by > 0 ? 0 : ids.length - 1) : at + by;
  if (ids[next] !== undefined) goTo(ids[next]);
}

/** Another one beside the open episode: the next in the list, never the open one itself. */
export function otherNeighbour(by: number): void {
  const ids = open.neighbours();
  let at = ids.indexOf(state.otherId ?? state.episodeId ?? "") + by;
  if (ids[at] === state.episodeId) at += by;
  if (ids[at] !== undefined) set({ otherId: ids[at]! });
}

export function compare(): void {
  if (state.otherId) return set({ otherId: null });
  const ids = open.neighbours();
  const at = state.episodeId ? ids.indexOf(state.episodeId) : -1;
  const other = ids[at + 1] ?? ids[at - 1];
  if (other) set({ otherId: other });
}

/** One frame of the first camera, or a hundredth of what is seen. */
export function step(by: number): void {
  const times = open.frameTimes;
  if (!times.length) return clock.go(clock.at + (by * (clock.to - clock.from)) / 100);
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle]! <= clock.at) low = middle + 1;
    else high = middle;
  }
  const row = low - 1;
  const target = by < 0 && row >= 0 && times[row]! < clock.at ? row : row + by;
  clock.go(times[Math.min(Math.max(target, 0), times.length - 1)]!);
}

/** A jump that was asked for before the marks of the episode were here. */
let jumpAsked: (() => void) | null = null;
export function marksCame(): void {
  const jump = jumpAsked;
  jumpAsked = null;
  jump?.();
}

function jump(timesOf: (marks: Marks) => number[], forward: boolean, what: string): void {
  if (!open.marks) {
    jumpAsked = () => jump(timesOf, forward, what);
    return;
  }
  const times = timesOf(open.marks);
  const found = forward ? times.find((each) => each > clock.at) : times.findLast((each) => each < clock.at);
  if (found === undefined) say(`no ${forward ? "further" : "earlier"} ${what}`);
  else clock.go(found);
}

export const nextEvent = (forward: boolean): void =>
  jump((marks) => marks.events.map((each) => each.at), forward, "event");
export const nextGap = (forward: boolean): void =>
  jump((marks) => [...new Set(marks.gaps.map((each) => each.from))].sort((a, b) => a - b), forward, "gap");

let worst: { id: string; at: number[]; next: number } | null = null;
export async function worstError(): Promise<void> {
  if (!open.info) return;
  if (worst?.id !== open.info.id) {
    const found = await getJson<{ errors: { at_ns: string; error: number }[] }>("errors", { episode: open.info.id });
    worst = { id: open.info.id, at: found.errors.map((each) => Number(BigInt(each.at_ns) - clock.base)), next: 0 };
  }
  const at = worst.at[worst.next % Math.max(1, worst.at.length)];
  if (at === undefined) return say("no prediction to compare with what came");
  worst.next++;
  clock.go(at);
}

/** Whether the filter of the list hides an episode. */
async function isHidden(id: string): Promise<boolean> {
  if (!state.where || state.whereError) return false;
  const where = `(${state.where}\n) and id = '${id.replaceAll("'", "''")}'`;
  return (await getJson<{ total: number }>("episodes", { where, sort: "", order: "up", start: 0, count: 1 })).total === 0;
}

/** Whether an edit of this page is on its way: the page shows its effect itself. */
export let isEditing = false;
export async function edit(body: Record<string, unknown>, done: string): Promise<void> {
  if (state.dataset?.refusal) return say("this cannot be edited here", state.dataset.refusal, true);
  isEditing = true;
  try {
    const edited = body.op === "undrop" ? undefined : (body.episode as string | undefined);
    if (edited && (await isHidden(edited)))
      return say(`not changed: the filter hides ${named(edited)}`, "Choose an episode of the list, or clear the filter.", true);
    const effect = await post<{ before: { id: string }[]; after: { id: string; dropped: boolean }[] }>("edit", body);
    open.setTrim(null);
    const mine = state.episodeId;
    const gone = effect.before.some((each) => each.id === mine);
    const left = effect.after.find((each) => each.id === mine && !each.dropped);
    const ids = open.neighbours();
    const at = mine ? ids.indexOf(mine) : -1;
    if (gone && !left) goTo(effect.after.find((each) => !each.dropped)?.id ?? ids[at + 1] ?? ids[at - 1] ?? null);
    // Who labels a filtered list goes on with the next episode when the filter hides this one.
    const next = ids[at + 1] ?? ids[at - 1];
    if (edited && mine === state.episodeId && next && next !== mine && (await isHidden(edited))) goTo(next);
    await loadDataset();
    if (mine === state.episodeId) open.reload();
    say(done);
  } catch (error) {
    complain(error);
  } finally {
    isEditing = false;
  }
}

const current = (): string => open.info?.id ?? "";
export const drop = (): Promise<void> => edit({ op: "drop", episode: current() }, `dropped ${named(current())}`);
export const undrop = (id: string): Promise<void> => edit({ op: "undrop", episode: id }, `${named(id)} is back`);
export const undo = (): Promise<void> => edit({ op: "undo" }, "undone");
export const redo = (): Promise<void> => edit({ op: "redo" }, "done again");
export const split = (): Promise<void> =>
  edit({ op: "split", episode: current(), at_ns: clock.time.toString() }, `${named(current())} is split in two`);
export const mark = (name: string, value: unknown): Promise<void> =>
  edit({ op: "mark", episode: current(), name, value }, `${named(current())}: ${name} is ${JSON.stringify(value)}`);
export function trim(): Promise<void> {
  const chosen = open.trim;
  if (!chosen) {
    say("nothing to trim", "Drag the handles of the ruler, or press [ and ] at the cursor.");
    return Promise.resolve();
  }
  const absolute = (at: number): string => (clock.base + BigInt(Math.round(at))).toString();
  const start = chosen.from > 0 ? absolute(chosen.from) : null;
  // The end is the first moment that is not shown any more.
  const end = chosen.to < clock.length ? absolute(chosen.to + 1) : null;
  return edit({ op: "trim", episode: current(), start_ns: start, end_ns: end }, `${named(current())} is trimmed`);
}
export function trimFrom(): void {
  open.setTrim({ from: clock.at, to: open.trim && open.trim.to > clock.at ? open.trim.to : clock.length });
}
export function trimTo(): void {
  open.setTrim({ from: open.trim && open.trim.from < clock.at ? open.trim.from : 0, to: clock.at });
}

export function theme(): void {
  set({ theme: state.isDark ? "light" : "dark" });
}

export async function share(): Promise<void> {
  try {
    await navigator.clipboard.writeText(location.href);
    say("the link to this moment is copied", "Whoever opens it needs a viewer of the same data.");
  } catch {
    say("the address bar holds the link to this moment");
  }
}

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
export function faster(by: number): void {
  const at = SPEEDS.indexOf(state.speed);
  set({ speed: SPEEDS[Math.min(Math.max((at < 0 ? 3 : at) + by, 0), SPEEDS.length - 1)]! });
}
