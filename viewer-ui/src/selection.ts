// Statistics of a selection of rows where no server makes them: the same as statistics.py.

export interface Measure { counts: number[]; low: number; high: number; mean: number; sum: number }
export interface Statistics {
  episodes: number;
  measures: Record<string, Measure>;
  outliers: Record<string, string[]>;
  success: { value: boolean | null; count: number }[];
  task: { value: string | null; count: number }[];
}
type Row = Record<string, unknown> & { id: string };

const MEASURES = ["length", "duration_s", "total_reward"];
const BINS = 24;
/** An outlier is this many scaled median deviations from the median. */
const FAR = 3.5;
const LEAST = 5;
const MOST_TASKS = 40;

export function statisticsOf(rows: Row[]): Statistics {
  const measures: Record<string, Measure> = {};
  const outliers: Record<string, string[]> = {};
  for (const name of MEASURES) {
    const known = rows.filter((row) => typeof row[name] === "number") as (Row & Record<string, number>)[];
    const values = known.map((row) => row[name]!);
    if (!values.length) continue;
    measures[name] = histogram(values);
    const isFar = farOff(values);
    for (const row of known) if (isFar(row[name]!)) (outliers[row.id] ??= []).push(name);
  }
  return { episodes: rows.length, measures, outliers, success: counted(rows, "success", 3), task: counted(rows, "task", MOST_TASKS) };
}

function histogram(values: number[]): Measure {
  let [low, high] = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  const sum = values.reduce((a, b) => a + b, 0);
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const bins = Math.min(BINS, new Set(values).size);
  const counts = new Array<number>(bins).fill(0);
  for (const each of values) counts[Math.min(bins - 1, Math.floor(((each - low) / (high - low)) * bins))]!++;
  return { counts, low, high, mean: sum / values.length, sum };
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

function farOff(values: number[]): (value: number) => boolean {
  const middle = median(values);
  const away = values.map((each) => Math.abs(each - middle));
  // Where more than half are the same, the mean deviation tells how far the others are.
  const spread = median(away) * 1.4826 || (away.reduce((a, b) => a + b, 0) / away.length) * 1.2533;
  return (value) => values.length >= LEAST && spread > 0 && Math.abs(value - middle) > FAR * spread;
}

function counted<T>(rows: Row[], name: string, most: number): { value: T | null; count: number }[] {
  const found = new Map<T | null, number>();
  for (const row of rows) {
    const value = (row[name] ?? null) as T | null;
    found.set(value, (found.get(value) ?? 0) + 1);
  }
  return [...found].map(([value, count]) => ({ value, count })).sort((a, b) => b.count - a.count).slice(0, most);
}
