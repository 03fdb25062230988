import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import * as actions from "./actions";
import { checkLink, keepAddress, readAddress } from "./address";
import { isSettled } from "./cameras";
import { clock } from "./clock";
import { Drawer } from "./drawer";
import { EpisodePage } from "./episode";
import { Help, listenToKeys } from "./keys";
import { EpisodeList } from "./list";
import { type LiveState, set, type State, state, useModel } from "./model";
import { connect, follow, getJson, Refused } from "./wire";

/** Of a place on a disk or in the net its last part tells most; the rest is in the tooltip. */
const calledFor = (name: string): string => (/^(\/|\w+:\/\/)/.test(name) ? (name.split("/").filter(Boolean).at(-1) ?? name) : name);

function Top() {
  const model = useModel();
  const [text, setText] = useState(model.where);
  useEffect(() => setText(model.where), [model.where]);
  return (
    <header class="top">
      <button class="quiet" aria-label="List of episodes" aria-expanded={model.listOpen} title="l" onClick={() => set({ listOpen: !state.listOpen })}>☰</button>
      <strong class="name cut" title={model.dataset?.name}>{calledFor(model.dataset?.name ?? "")}</strong>
      <form
        class="filter" role="search"
        onSubmit={(event) => {
          event.preventDefault();
          set({ where: text.trim() });
        }}
      >
        <input
          data-testid="filter" type="search" value={text} spellcheck={false} autocomplete="off" aria-label="Filter episodes by a SQL condition"
          aria-invalid={Boolean(model.whereError)} placeholder="filter: success and duration_s > 5" list="columns"
          onInput={(event) => setText(event.currentTarget.value)}
          onSearch={() => text === "" && set({ where: "" })}
          onChange={(event) => set({ where: event.currentTarget.value.trim() })}
        />
        <datalist id="columns">{model.dataset?.columns.map((each) => <option key={each.name} value={each.name} />)}</datalist>
        {model.whereError && <p class="failure" role="alert">{model.whereError}</p>}
      </form>
      <span class="space" />
      <button class="quiet" title="o" onClick={() => set({ drawer: state.drawer === "stats" ? null : "stats" })}>Statistics</button>
      <button class="quiet" title="i" onClick={() => set({ drawer: state.drawer === "statics" ? null : "statics" })}>Details</button>
      <button class="quiet" title="Shift+S" onClick={() => void actions.share()}>Share</button>
      <button class="quiet" aria-label="Dark or light" title="t" onClick={actions.theme}>◐</button>
      <button class="quiet" aria-label="Keys" title="?" onClick={() => set({ help: true })}>?</button>
    </header>
  );
}

function App() {
  const model = useModel();
  if (model.fatal)
    return <div class="blank"><h1>The viewer is not open</h1><p>{model.fatal.message}</p><p class="dim">{model.fatal.hint}</p></div>;
  return (
    <div class={`page${model.listOpen ? "" : " no-list"}${model.drawer ? " with-drawer" : ""}`}>
      <Top />
      <div class={model.listOpen ? "left" : "left closed"}><EpisodeList /></div>
      <EpisodePage />
      <Drawer />
      <Help />
      {model.notice && (
        <div class={`notice${model.notice.bad ? " bad" : ""}`} role="status">{model.notice.text}{model.notice.hint && <span class="dim"> {model.notice.hint}</span>}</div>
      )}
    </div>
  );
}

declare global {
  interface Window {
    warpdata: { time_ns: number; readonly time_text: string; readonly is_settled: boolean };
  }
}

/** For scripts and tests: the cursor in nanoseconds, as a number and as exact text. */
window.warpdata = {
  get time_ns() {
    return Number(clock.time);
  },
  set time_ns(at: number | bigint | string) {
    clock.go(Number(BigInt(at) - clock.base));
  },
  get time_text() {
    return clock.time.toString();
  },
  get is_settled() {
    return isSettled();
  },
} as Window["warpdata"];

async function askChecks(): Promise<NonNullable<State["checks"]>> {
  const checks = await getJson<NonNullable<State["checks"]>>("checks", {});
  if (JSON.stringify(checks) === JSON.stringify(state.checks)) return checks;
  const info = actions.open.info;
  const isCompared = checks.checked >= checks.total && state.checks && state.checks.checked < state.checks.total;
  const isStale = info && (!info.findings || isCompared || checks.worst[info.id] !== state.checks?.worst[info.id]);
  set({ checks });
  if (isStale) actions.open.reload();
  return checks;
}

async function watchChecks(): Promise<void> {
  for (;;) {
    try {
      const checks = await askChecks();
      const isDone = checks.checked >= checks.total || !checks.wanted;
      await new Promise((resolve) => setTimeout(resolve, isDone ? 10_000 : 1500));
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 10_000));
    }
  }
}

async function start(): Promise<void> {
  const page = document.getElementById("app")!;
  try {
    await connect();
    readAddress();
    page.replaceChildren(); // removed before anything is drawn: else it would be moved out of sight
    render(<App />, page);
    await actions.loadDataset();
  } catch (error) {
    const hint = error instanceof Refused ? error.hint : "";
    set({ fatal: { message: (error as Error).message, hint } });
    render(<App />, page);
    return;
  }
  document.title = `${state.dataset!.name} – warpdata`;
  checkLink();
  keepAddress();
  listenToKeys();
  void watchChecks();
  if (state.dataset!.is_root || state.dataset!.draft)
    void follow("live", (heard) => {
      const live = heard as LiveState;
      const isNew = live.generation !== state.dataset?.generation;
      const isChecked = live.checks !== state.live?.checks;
      set({ live });
      if (isNew || isChecked) void askChecks().catch(actions.complain);
      if (!isNew || actions.isEditing) return;
      void actions.loadDataset().catch(actions.complain);
      actions.open.reload(); // another browser or program may have edited what is open here
    });
}

void start();
