// What the page knows, in one place; components draw it again when it changes.
import { useEffect, useState } from "preact/hooks";

export interface DatasetInfo {
  name: string;
  episodes: number;
  generation: number;
  selected: string | null;
  refusal: string | null;
  columns: { name: string; type: string }[];
  draft: string | null;
  is_root: boolean;
  /** Whether reading it costs no network. */
  is_here: boolean;
  has_moments: boolean;
  /** Whether everything is known of all episodes: until then there is nothing to sort or filter by. */
  has_facts: boolean;
}

export interface Row {
  id: string;
  length?: number | null;
  duration_s?: number | null;
  task?: string | null;
  success?: boolean | null;
  total_reward?: number | null;
  problems?: string[] | null;
  flags?: string[] | null;
  worst?: string | null;
  live?: boolean;
}

export interface SignalInfo {
  number: number;
  name: string;
  shows: "plot" | "camera" | "text";
  kind: string;
  dtype: string;
  shape: number[];
  role: string;
  of: string | null;
  model: string | null;
  units: string | null;
  names: string[] | null;
  count: number;
  /** Whether this is a prediction that can be compared with what came. */
  has_residual?: boolean;
  /** Whether this is that comparison: prediction minus truth. */
  is_residual?: boolean;
  first_ns?: string;
  rate_hz?: number | null;
}

export interface Finding {
  rule: string;
  severity: string;
  signal: string | null;
  message: string;
  details: Record<string, unknown>;
}

export interface EpisodeInfo {
  id: string;
  start_ns: string;
  stop_ns: string;
  signals: SignalInfo[];
  problems: { signal: string; message: string; hint: string }[];
  static: Record<string, unknown>;
  meta: Record<string, unknown>;
  steps: { clock: string; count: number } | null;
  findings: Finding[] | null;
  is_unfinished: boolean;
}

export interface Marks {
  events: { signal: number; at: number; text: string }[];
  gaps: { signal: number; from: number; to: number }[];
}

export interface Recording {
  id: string;
  is_live: boolean;
  records?: Record<string, number>;
  /** Frames of each camera that wait for the encoder. */
  backlog?: Record<string, number>;
  /** Values that the recorder refused, and calls that had to wait for an encoder; missing where it does not say. */
  dropped?: number;
  refused?: number;
  blocked?: number;
  blocked_ns?: number;
  lost?: number;
}

export interface LiveState {
  generation: number;
  episodes: number;
  checks: number;
  recordings: Recording[];
  free_bytes?: number;
}

export type Drawer = "statics" | "stats" | "history" | "moments" | null;

export interface State {
  dataset: DatasetInfo | null;
  fatal: { message: string; hint: string } | null;
  where: string;
  whereError: string;
  sort: string;
  order: "up" | "down";
  listGeneration: number;
  episodeId: string | null;
  otherId: string | null;
  listOpen: boolean;
  drawer: Drawer;
  theme: "auto" | "dark" | "light";
  /** Whether the page is dark now, by choice or as the system is. */
  isDark: boolean;
  help: boolean;
  hidden: Set<string>;
  plotOrder: string[];
  live: LiveState | null;
  notice: { text: string; hint: string; bad: boolean } | null;
  checks: { checked: number; total: number; wanted: boolean; worst: Record<string, string>; usual: string[]; far: Record<string, string[]> } | null;
  playing: boolean;
  speed: number;
  /** The moment others were asked to be like. */
  momentsOf: { episode: string; at: bigint } | null;
}

export const state: State = {
  dataset: null,
  fatal: null,
  where: "",
  whereError: "",
  sort: "",
  order: "up",
  listGeneration: 0,
  episodeId: null,
  otherId: null,
  listOpen: true,
  drawer: null,
  theme: "auto",
  isDark: false,
  help: false,
  hidden: new Set(),
  plotOrder: [],
  live: null,
  notice: null,
  checks: null,
  playing: false,
  speed: 1,
  momentsOf: null,
};

const listeners = new Set<() => void>();

const systemDark = matchMedia("(prefers-color-scheme: dark)");
systemDark.addEventListener("change", () => set({}));

export function set(patch: Partial<State>): void {
  Object.assign(state, patch);
  // Before anything is drawn: charts read their colours from the style of the page.
  state.isDark = state.theme === "auto" ? systemDark.matches : state.theme === "dark";
  if (state.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = state.theme;
  for (const each of [...listeners]) each();
}

export function onChange(heard: () => void): () => void {
  listeners.add(heard);
  return () => listeners.delete(heard);
}

/** Draw a component again whenever the state changes. */
export function useModel(): State {
  const [, again] = useState(0);
  useEffect(() => onChange(() => again((n) => n + 1)), []);
  return state;
}

let noticeTimer = 0;
export function say(text: string, hint = "", bad = false): void {
  clearTimeout(noticeTimer);
  set({ notice: { text, hint, bad } });
  noticeTimer = window.setTimeout(() => set({ notice: null }), bad ? 9000 : 3500);
}

/** The id of an episode without the zeros that a person does not read. */
export const named = (id: string): string => id.replace(/^0{4,}(?=\d)/, "");

export const PALETTE = 8;

/** The same signal always has the same colour: it depends on its name and channel only. */
export function colourOf(name: string, channel: number): string {
  let hash = 0;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) >>> 0;
  return getComputedStyle(document.documentElement).getPropertyValue(`--line-${(hash + channel) % PALETTE}`).trim();
}

export function seconds(ns: number, digits = 3): string {
  return (ns / 1e9).toFixed(digits);
}

export function spoken(ns: number): string {
  const size = Math.abs(ns);
  if (size < 1e3) return `${ns} ns`;
  if (size < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
}

export function short(value: number, digits = 5): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(Math.min(digits - 1, 2));
  return String(Number(value.toPrecision(digits)));
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  const power = Math.min(Math.floor(Math.log2(count) / 10), 4);
  return `${(count / 1024 ** power).toFixed(1)} ${"KMGT"[power - 1]}iB`;
}
