// The drawer on the right: static items, statistics of the selection, and the history of edits.
import { useEffect, useState } from "preact/hooks";
import * as actions from "./actions";
import { Thumbnail } from "./list";
import { colourOf, type Drawer as Kind, named, seconds, set, short, type SignalInfo, state, useModel } from "./model";
import { channelName } from "./plots";
import type { Measure, Statistics as Stats } from "./selection";
import { siteName } from "./site";
import { getJson, post } from "./wire";

const TITLES: Record<Exclude<Kind, null>, string> = { statics: "Episode", stats: "Selection", history: "Edits", moments: "Moments" };

export function Drawer() {
  const { drawer, dataset } = useModel();
  if (!drawer) return null;
  const tabs = (Object.keys(TITLES) as Exclude<Kind, null>[]).filter((each) => each !== "moments" || dataset?.has_moments);
  return (
    <aside class="drawer" aria-label={TITLES[drawer]}>
      <header>
        {tabs.map((each) => (
          <button key={each} class={`tab quiet${each === drawer ? " chosen" : ""}`} aria-pressed={each === drawer} onClick={() => set({ drawer: each })}>{TITLES[each]}</button>
        ))}
        <span class="space" />
        <button class="quiet" aria-label="Close" onClick={() => set({ drawer: null })}>✕</button>
      </header>
      <div class="drawer-body">
        {drawer === "statics" && <Statics />}
        {drawer === "stats" && <Statistics />}
        {drawer === "history" && <History />}
        {drawer === "moments" && <Moments />}
      </div>
    </aside>
  );
}

interface Found {
  index: string;
  /** What `score` is: `similarity`, larger is nearer; or `distance`, smaller is nearer. */
  measure: string;
  moments: { episode: string; at_ns: string; since_start_ns: number; score: number }[];
}

function Moments() {
  const { momentsOf, dataset } = useModel();
  const [found, setFound] = useState<Found | null>(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    if (!momentsOf) return;
    const abort = new AbortController();
    getJson<Found>("moments", momentsOf, abort.signal)
      .then((answer) => {
        setFound(answer);
        setFailure("");
      })
      .catch((error) => {
        if (error.name === "AbortError") return;
        setFound(null);
        setFailure(`${error.message} ${error.hint ?? ""}`);
      });
    return () => abort.abort();
  }, [momentsOf]);
  const again = <button onClick={actions.momentsLikeThis}>Moments like the one at the cursor</button>;
  if (!momentsOf) return again;
  if (failure) return <><p class="failure">{failure}</p>{again}</>;
  if (!found) return <p class="dim">Searching…</p>;
  return (
    <>
      <p class="dim">
        Like{" "}
        <button class="link" onClick={() => actions.goAt(momentsOf.episode, momentsOf.at)}>{named(momentsOf.episode)}</button>, by {found.index}:
      </p>
      <ol class="moments">
        {found.moments.map((each) => (
          <li key={`${each.episode}@${each.at_ns}`}>
            <button
              class="moment quiet" data-testid="moment" data-episode={each.episode} data-at-ns={each.at_ns} title="go there; with Shift beside this one"
              onClick={(event) => (event.shiftKey ? set({ otherId: each.episode }) : actions.goAt(each.episode, BigInt(each.at_ns)))}
            >
              <Thumbnail id={each.episode} at={each.at_ns} version={dataset?.generation ?? 0} />
              <span class="row-text"><strong>{named(each.episode)} · {seconds(each.since_start_ns)} s</strong><span class="dim">{found.measure} {short(each.score, 4)}</span></span>
            </button>
          </li>
        ))}
      </ol>
      {!found.moments.length && <p class="dim">Nothing else is in the index.</p>}
      {again}
    </>
  );
}

function shown(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

function Statics() {
  const { dataset } = useModel();
  const info = actions.open.info;
  if (!info) return <p class="dim">No episode is open.</p>;
  const refusal = dataset?.refusal;
  return (
    <>
      <form
        class="marks"
        onSubmit={(event) => {
          event.preventDefault();
          const data = new FormData(event.currentTarget);
          void actions.mark(String(data.get("name")), String(data.get("value")));
        }}
      >
        <label>Mark <input name="name" list="mark-names" required value="task" disabled={Boolean(refusal)} /></label>
        <datalist id="mark-names"><option value="task" /><option value="notes" /></datalist>
        <label>as <input name="value" required placeholder="pick the cube" disabled={Boolean(refusal)} /></label>
        <button disabled={Boolean(refusal)} title={refusal ?? ""}>Save</button>
      </form>
      {refusal && <p class="dim">{refusal}</p>}
      <Items title="Static items" items={info.static} />
      {(info.findings?.length ?? 0) > 0 && (
        <section>
          <h3>Findings</h3>
          <ul class="findings">
            {info.findings!.map((each, i) => <li key={i}><b class={each.severity}>{each.rule}</b> {each.signal} {each.message}</li>)}
          </ul>
        </section>
      )}
      <section>
        <h3>Signals</h3>
        <table class="signals">
          <thead><tr><th scope="col">name</th><th scope="col">records</th><th scope="col">rate</th></tr></thead>
          <tbody>
            {info.signals.map((each) => (
              <tr key={each.name}>
                <th scope="row">
                  {each.name}
                  <span class="dim">{each.dtype === "object" ? each.kind : `${each.dtype}${each.shape.length ? `[${each.shape.join("×")}]` : ""}`}{each.units ? `, ${each.units}` : ""}</span>
                </th>
                <td>{each.count.toLocaleString("en")}</td>
                <td>{each.rate_hz ? `${short(Number(each.rate_hz.toFixed(2)))} Hz` : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      <Items title="Metadata" items={info.meta} />
    </>
  );
}

function Items({ title, items }: { title: string; items: Record<string, unknown> }) {
  const names = Object.keys(items);
  if (!names.length) return null;
  return (
    <section>
      <h3>{title}</h3>
      <dl class="items">
        {names.map((name) => <div key={name}><dt>{name}</dt><dd>{shown(items[name])}</dd></div>)}
      </dl>
    </section>
  );
}

const quoted = (text: string): string => `'${text.replaceAll("'", "''")}'`;
function narrow(condition: string): void {
  set({ where: state.where ? `(${state.where}) and ${condition}` : condition });
}

function Statistics() {
  const { where, listGeneration, checks } = useModel();
  const [found, setFound] = useState<Stats | null>(null);
  useEffect(() => {
    const abort = new AbortController();
    getJson<Stats>("statistics", { where }, abort.signal).then(setFound).catch(actions.complain);
    return () => abort.abort();
  }, [where, listGeneration]);
  if (!found) return null;
  const outliers = Object.entries(found.outliers);
  const plotted = (actions.open.info?.signals ?? []).filter((each) => each.shows === "plot" && each.count > 0).sort((a, b) => placeOf(a) - placeOf(b));
  return (
    <>
      <p><b>{found.episodes.toLocaleString("en")}</b> episodes{where ? " satisfy the filter" : ""}.</p>
      {Object.entries(found.measures).map(([name, each]) => <Histogram key={name} name={name} {...each} />)}
      <Counts title="success" items={found.success} condition={(value) => (value === null ? "success is null" : value ? "success" : "not success")} />
      <Counts title="task" items={found.task} condition={(value) => (value === null ? "task is null" : `task = ${quoted(String(value))}`)} />
      <section>
        <h3>Outliers</h3>
        {outliers.length ? (
          <ul class="outliers">
            {outliers.slice(0, 50).map(([id, why]) => (
              <li key={id}><button class="quiet" onClick={() => actions.goTo(id)}>{named(id)}</button> <span class="dim">{why.join(", ")}</span></li>
            ))}
          </ul>
        ) : <p class="dim">None by length, duration or return.</p>}
      </section>
      <section>
        <h3>Values</h3>
        {plotted.map((each) => <Distribution key={each.name} signal={each} where={where} turn={listGeneration} />)}
        {!plotted.length && <p class="dim">No signals of numbers in the open episode.</p>}
      </section>
      <section>
        <h3>Health</h3>
        <p class="dim">{checks ? `${checks.checked} of ${checks.total} checked, ${Object.keys(checks.worst).length} with findings` : ""}</p>
        {Boolean(checks?.usual.length) && <p class="dim">In every episode: {checks!.usual.join(", ")}</p>}
        {checks && !checks.wanted && <button onClick={() => void post("check", {}).catch(actions.complain)}>Check all</button>}
      </section>
    </>
  );
}

/** Observations and actions first: they are what is learned from. */
const placeOf = (signal: SignalInfo): number => ["observation", "action"].indexOf(signal.role) >>> 0;

interface Distributed {
  episodes: number;
  records: number;
  unreadable: number;
  channels: (Measure | null)[];
}

/** How the values of a signal lie in the selection, channel by channel; asked for when it is unfolded. */
function Distribution({ signal, where, turn }: { signal: SignalInfo; where: string; turn: number }) {
  const { dataset } = useModel();
  const [isOpen, setOpen] = useState(dataset?.is_here === true && placeOf(signal) < 2);
  const [found, setFound] = useState<Distributed | null>(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    if (!isOpen) return;
    const abort = new AbortController();
    getJson<Distributed>("distribution", { where, signal: signal.name }, abort.signal)
      .then((answer) => {
        setFound(answer);
        setFailure("");
      })
      .catch((error) => error.name !== "AbortError" && setFailure(error.message));
    return () => abort.abort();
  }, [isOpen, where, turn, signal.name]);
  const from = found && `${found.records.toLocaleString("en")} records of ${found.episodes} episodes${siteName() && where ? ", filtered or not" : ""}${found.unreadable ? `; ${found.unreadable} cannot be read` : ""}`;
  return (
    <details class="distribution" data-testid="distribution" data-signal={signal.name} open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{signal.name} <span class="dim">{signal.role}{signal.units ? `, ${signal.units}` : ""}</span></summary>
      {failure && <p class="failure">{failure}</p>}
      {found?.channels.map((each, channel) => (
        <div key={channel} class="spread" data-mean={each?.mean}>
          <span class="cut" title={channelName(signal, channel)}>{found.channels.length > 1 ? channelName(signal, channel) : ""}</span>
          {each ? (
            <>
              <span class="dim">{short(each.low, 3)}</span>
              <Bars measure={each} colour={colourOf(signal.name, channel)} label={`${channelName(signal, channel)} from ${short(each.low)} to ${short(each.high)}, mean ${short(each.mean)}`} />
              <span class="dim">{short(each.high, 3)}</span>
            </>
          ) : <span class="dim">no numbers</span>}
        </div>
      ))}
      {from && <p class="dim">{from}</p>}
    </details>
  );
}

/** A small histogram, with its mean marked. */
function Bars({ measure, colour, label }: { measure: Measure; colour: string; label: string }) {
  const { counts, low, high, mean } = measure;
  const most = Math.max(...counts);
  const width = 120 / counts.length;
  const at = high > low ? ((mean - low) / (high - low)) * 120 : 60;
  return (
    <svg viewBox="0 0 120 20" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      {counts.map((count, i) => <rect key={i} x={i * width} width={Math.max(0.5, width - 0.5)} y={20 - (20 * count) / most} height={(20 * count) / most} fill={colour} />)}
      <rect class="mean" x={at - 0.5} width={1} y={0} height={20} />
    </svg>
  );
}

function Histogram({ name, counts, low, high, mean }: { name: string; counts: number[]; low: number; high: number; mean: number }) {
  const most = Math.max(...counts);
  const width = 240 / counts.length;
  const edge = (i: number): number => low + ((high - low) * i) / counts.length;
  const choose = (i: number, event: Event): void => {
    event.preventDefault();
    event.stopPropagation();
    narrow(`${name} >= ${edge(i)} and ${name} ${i === counts.length - 1 ? "<=" : "<"} ${edge(i + 1)}`);
  };
  return (
    <section>
      <h3>{name} <span class="dim">mean {short(mean)}</span></h3>
      <svg class="histogram" viewBox="0 0 240 48" preserveAspectRatio="none" role="group" aria-label={`Histogram of ${name} from ${short(low)} to ${short(high)}`}>
        {counts.map((count, i) => (
          <rect
            key={i} role="button" tabindex={count ? 0 : -1} aria-label={`${short(edge(i))} to ${short(edge(i + 1))}: ${count}`} onKeyDown={(event) => (event.key === "Enter" || event.key === " ") && choose(i, event)}
            x={i * width} width={Math.max(1, width - 1)} y={48 - (46 * count) / most} height={(46 * count) / most}
            onClick={(event) => choose(i, event)}
          ><title>{`${short(edge(i))} to ${short(edge(i + 1))}: ${count}; click to filter`}</title></rect>
        ))}
      </svg>
      <p class="axis dim"><span>{short(low)}</span><span>{short(high)}</span></p>
    </section>
  );
}

function Counts({ title, items, condition }: {
  title: string;
  items: { value: string | boolean | null; count: number }[];
  condition: (value: string | boolean | null) => string;
}) {
  if (!items.length) return null;
  const all = items.reduce((sum, each) => sum + each.count, 0);
  return (
    <section>
      <h3>{title}</h3>
      {items.map((each) => (
        <button key={String(each.value)} class="count quiet" onClick={() => narrow(condition(each.value))} title="click to filter">
          <i style={{ width: `${(100 * each.count) / all}%` }} />
          <span class="cut">{each.value === null ? "not known" : String(each.value)}</span><b>{each.count}</b>
        </button>
      ))}
    </section>
  );
}

const MOST_DROPPED = 200;

interface Edit {
  seq: number;
  op: string;
  episode?: string;
  episodes?: string[];
  undoes?: number;
  redoes?: number;
  name?: string;
  value?: unknown;
  ts_ns: string;
  is_undone: boolean;
}

function History() {
  const { dataset, listGeneration } = useModel();
  const [{ edits, dropped }, setFound] = useState<{ edits: Edit[]; dropped: string[] }>({ edits: [], dropped: [] });
  useEffect(() => {
    getJson<{ edits: Edit[]; dropped: string[] }>("history", {}).then(setFound).catch(actions.complain);
  }, [listGeneration]);
  return (
    <>
      {dataset?.refusal && <p class="dim">{dataset.refusal}</p>}
      {dataset?.draft && <p class="dim">Edits of a published dataset are kept in {dataset.draft}; `warp publish --draft` takes them.</p>}
      <p class="buttons">
        <button disabled={Boolean(dataset?.refusal)} onClick={() => void actions.undo()}>Undo</button>
        <button disabled={Boolean(dataset?.refusal)} onClick={() => void actions.redo()}>Redo</button>
      </p>
      {dropped.length > 0 && (
        <section>
          <h3>Dropped</h3>
          <ul class="edits">
            {dropped.slice(0, MOST_DROPPED).map((id) => (
              <li key={id}>
                <span class="cut" title={id}>{named(id)}</span>
                <button class="quiet" data-testid="undrop" disabled={Boolean(dataset?.refusal)} onClick={() => void actions.undrop(id)}>bring back</button>
              </li>
            ))}
          </ul>
          {dropped.length > MOST_DROPPED && <p class="dim">and {dropped.length - MOST_DROPPED} more</p>}
        </section>
      )}
      {edits.length > 0 && <h3>Log</h3>}
      <ol class="edits" reversed>
        {edits.map((each) => (
          <li key={each.seq} class={each.is_undone ? "undone" : ""}>
            <span><b>{each.seq}</b> {said(each)}</span>
            {each.op !== "undo" && !each.is_undone && (
              <button class="quiet" disabled={Boolean(dataset?.refusal)} onClick={() => void actions.edit({ op: "undo", seq: each.seq }, `edit ${each.seq} is undone`)}>undo</button>
            )}
          </li>
        ))}
      </ol>
      {!edits.length && <p class="dim">Nothing was edited.</p>}
    </>
  );
}

function said(edit: Edit): string {
  if (edit.op === "undo") return `undo of ${edit.undoes}`;
  const which = named(edit.episode ?? edit.episodes?.join(" + ") ?? "");
  const what = edit.op === "set_static" ? `${edit.name} = ${shown(edit.value)}` : edit.op;
  return `${which}: ${what}${edit.redoes ? " (again)" : ""}`;
}
