// The address bar holds what is shown: a link to it opens the same moment.
import { clock } from "./clock";
import { type Drawer, onChange, say, set, state } from "./model";

/** What the link that was opened is about; the page says so where that is not what is shown. */
let linked = "";

export function checkLink(): void {
  const name = state.dataset?.name ?? "";
  if (linked && linked !== name) say(`the link is to ${linked}`, `This is ${name}: open the link with a viewer of the other.`, true);
}

export function readAddress(): void {
  const given = new URLSearchParams(location.search);
  linked = given.get("d") ?? "";
  const word = (name: string): string => given.get(name) ?? "";
  const drawer = word("drawer");
  set({
    where: word("where"), sort: word("sort"), order: word("order") === "down" ? "down" : "up",
    episodeId: word("e") || null, otherId: word("with") || null, listOpen: word("list") !== "0",
    drawer: (["statics", "stats", "history", "moments"].includes(drawer) ? drawer : null) as Drawer,
    theme: word("theme") === "dark" ? "dark" : word("theme") === "light" ? "light" : "auto",
    hidden: new Set(given.getAll("hide")), plotOrder: given.getAll("plot"), speed: Number(word("speed")) || 1,
  });
  if (matchMedia("(max-width: 700px)").matches && !word("list")) set({ listOpen: false });
  const number = (name: string): bigint | null => (/^-?\d+$/.test(word(name)) ? BigInt(word(name)) : null);
  const [at, from, to] = [number("at"), number("from"), number("to")];
  if (at === null && from === null) return;
  clock.wanted = () => {
    if (from !== null && to !== null) clock.show(Number(from - clock.base), Number(to - clock.base));
    if (at !== null) clock.at = Math.min(Math.max(Number(at - clock.base), 0), clock.length);
  };
}

function written(): string {
  const said = new URLSearchParams();
  const put = (name: string, value: string | false | null | undefined): void => {
    if (value) said.append(name, value);
  };
  put("d", state.dataset?.name);
  put("e", state.episodeId);
  put("with", state.otherId);
  if (state.episodeId && clock.length > 1) {
    put("at", clock.time.toString());
    if (clock.from > 0 || clock.to < clock.length) {
      put("from", (clock.base + BigInt(Math.round(clock.from))).toString());
      put("to", (clock.base + BigInt(Math.round(clock.to))).toString());
    }
  }
  put("where", state.where);
  put("sort", state.sort);
  put("order", state.order === "down" && "down");
  put("list", !state.listOpen && "0");
  put("drawer", state.drawer);
  put("theme", state.theme !== "auto" && state.theme);
  put("speed", state.speed !== 1 && String(state.speed));
  for (const each of state.hidden) said.append("hide", each);
  for (const each of state.plotOrder) said.append("plot", each);
  return `?${said.toString()}`;
}

/** Write it while things change, but not oftener than browsers allow. */
export function keepAddress(): void {
  let timer = 0;
  const soon = (): void => {
    if (timer) return;
    timer = window.setTimeout(() => {
      timer = 0;
      const text = written();
      if (text !== location.search) history.replaceState(null, "", location.pathname + text);
    }, 250);
  };
  onChange(soon);
  clock.onMove(soon);
  clock.onZoom(soon);
}
