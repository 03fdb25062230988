// The keyboard: every key once, with what it does; `?` shows the same table.
import {
  compare, complain, drop, faster, mark, momentsLikeThis, neighbour, nextEvent, nextGap, open, otherNeighbour, redo, share, split, step, theme, trim, trimFrom, trimTo, undo,
  worstError,
} from "./actions";
import { useEffect, useRef } from "preact/hooks";
import { clock } from "./clock";
import { set, state, useModel } from "./model";

type Key = [string, string, () => unknown];

const KEYS: [string, Key[]][] = [
  ["Time", [
    ["Space", "play or pause", () => clock.play()],
    ["ArrowRight", "next frame", () => step(1)],
    ["ArrowLeft", "frame before", () => step(-1)],
    ["Shift+ArrowRight", "one second on", () => clock.go(clock.at + 1e9)],
    ["Shift+ArrowLeft", "one second back", () => clock.go(clock.at - 1e9)],
    ["Home", "to the start", () => clock.go(0)],
    ["End", "to the end", () => clock.go(clock.length)],
    [".", "faster", () => faster(1)],
    [",", "slower", () => faster(-1)],
    ["+", "zoom in", () => clock.zoom(0.5)],
    ["-", "zoom out", () => clock.zoom(2)],
    ["0", "show all", () => clock.show(0, clock.length)],
    ["<", "move the window back", () => clock.pan(-0.25)],
    [">", "move the window on", () => clock.pan(0.25)],
  ]],
  ["Jump", [
    ["e", "next event", () => nextEvent(true)],
    ["Shift+E", "event before", () => nextEvent(false)],
    ["g", "next gap", () => nextGap(true)],
    ["Shift+G", "gap before", () => nextGap(false)],
    ["w", "worst prediction error, then the next worst", () => worstError().catch(complain)],
    ["m", "moments like this one", momentsLikeThis],
    ["j", "next episode", () => neighbour(1)],
    ["k", "episode before", () => neighbour(-1)],
  ]],
  ["Edit", [
    ["[", "trim: begin here", trimFrom],
    ["]", "trim: end here", trimTo],
    ["x", "trim to the handles", trim],
    ["s", "split here", split],
    ["y", "mark as success", () => mark("success", true)],
    ["n", "mark as failure", () => mark("success", false)],
    ["d", "drop the episode", drop],
    ["u", "undo", undo],
    ["r", "redo", redo],
  ]],
  ["View", [
    ["/", "filter the list", () => document.querySelector<HTMLInputElement>("[data-testid=filter]")?.focus()],
    ["l", "list", () => set({ listOpen: !state.listOpen })],
    ["i", "static items", () => set({ drawer: state.drawer === "statics" ? null : "statics" })],
    ["o", "statistics of the selection", () => set({ drawer: state.drawer === "stats" ? null : "stats" })],
    ["h", "edit history", () => set({ drawer: state.drawer === "history" ? null : "history" })],
    ["c", "beside another episode", compare],
    ["Shift+J", "another episode beside: the next", () => otherNeighbour(1)],
    ["Shift+K", "another episode beside: the one before", () => otherNeighbour(-1)],
    ["t", "dark or light", theme],
    ["Shift+S", "copy the link to this moment", share],
    ["?", "these keys", () => set({ help: !state.help })],
    ["Escape", "close", () => (state.help ? set({ help: false }) : open.trim ? open.setTrim(null) : set({ drawer: null }))],
  ]],
];

const BY_KEY = new Map(KEYS.flatMap(([, keys]) => keys.map(([key, , run]) => [key, run] as const)));

export function listenToKeys(): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const types = target.matches("input, textarea, select");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (types && event.key !== "Escape") return;
    if (types) return target.blur();
    if (target.matches("button, a, summary, [role=slider]") && (event.key === " " || event.key === "Enter")) return;
    const letter = event.key === " " ? "Space" : event.key;
    const name = event.shiftKey && (letter.length > 1 || /[A-Z]/.test(letter)) ? `Shift+${letter}` : letter;
    const run = BY_KEY.get(name);
    if (!run) return;
    event.preventDefault();
    run();
  });
}

export function Help() {
  const { help } = useModel();
  const close = useRef<HTMLButtonElement>(null);
  // Who cannot see it must be in it: the focus goes there, and back to where it was.
  useEffect(() => {
    if (!help) return;
    const before = document.activeElement as HTMLElement | null;
    close.current?.focus();
    return () => before?.focus();
  }, [help]);
  if (!help) return null;
  return (
    <div class="veil" onClick={() => set({ help: false })}>
      <div class="help" role="dialog" aria-modal="true" aria-label="Keys" onClick={(event) => event.stopPropagation()}>
        <header>
          <h2>Keys</h2>
          <button ref={close} class="quiet" aria-label="Close" onClick={() => set({ help: false })}>✕</button>
        </header>
        <div class="help-columns">
          {KEYS.map(([title, keys]) => (
            <section key={title}>
              <h3>{title}</h3>
              <dl>
                {keys.map(([key, says]) => (
                  <div key={key}>
                    <dt><kbd>{key.replace("Arrow", "").replace("Right", "→").replace("Left", "←")}</kbd></dt>
                    <dd>{says}</dd>
                  </div>
                ))}
              </dl>
            </section>
          ))}
        </div>
        <p class="dim">In plots: drag to zoom, Ctrl and wheel to zoom, Shift and drag to move, double click for all. Tab goes to the plots: Enter hides one, Alt with ↑ or ↓ moves it.</p>
      </div>
    </div>
  );
}
