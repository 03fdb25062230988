// What a person does, in a real browser. Each line of the input asks for one scenario: `["open", URL, {…}]`; lines of the
// output answer: `{"seen": true}` where the asker may go on before the end, `{"failed": null | "why"}` at the end.
// One browser serves them all, each scenario in windows of its own that share nothing: starting one costs more than most of them do.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { inspect } from "node:util";
import { launch, numbers, settled } from "./browser.mjs";

const browser = await launch();
let url, options;
const faults = [];

async function open(address = url, more = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...more });
  const page = await context.newPage();
  page.asked = [];
  page.setDefaultTimeout(options.patience ?? 180_000);
  page.on("pageerror", (error) => faults.push(error.message));
  page.on("console", (said) => said.type() === "error" && faults.push(`${said.text()} ${said.location().url}`));
  page.on("request", (request) => {
    const { host, pathname } = new URL(request.url());
    page.asked.push(pathname.split("/").pop());
    if (host && host !== new URL(url).host && host !== options.data) faults.push(`asked ${request.url()}`);
  });
  await page.goto(address);
  await page.waitForSelector("[data-testid=episode-row]", { state: "attached" });
  return page;
}

const rows = (page) => page.locator("[data-testid=episode-row]").count();
const untilRows = (page, count) =>
  page.waitForFunction((n) => document.querySelectorAll("[data-testid=episode-row]").length === n, count);

/** Until the open episode lasts less than so many milliseconds. */
const untilShorter = (page, ms) =>
  page.waitForFunction((most) => Number(document.querySelector("[data-testid=time-cursor]")?.getAttribute("aria-valuemax") ?? most) < most, ms);

/** How far what was on the screen moved since the page was opened, as browsers count it. */
const shifted = (page) =>
  page.evaluate(
    () =>
      new Promise((done) => {
        let sum = 0;
        const observer = new PerformanceObserver((list) => list.getEntries().forEach((each) => (sum += each.value)));
        observer.observe({ type: "layout-shift", buffered: true });
        setTimeout(() => done(sum), 100);
      }),
  );

const SCENARIOS = {
  async open() {
    const page = await open();
    await settled(page);
    assert.equal(await rows(page), 3);
    assert.equal(page.asked.filter((each) => each === "episodes").length, 1, "the first rows are asked for once");
    assert.ok((await page.locator("[data-testid=plot]").count()) >= 3);
    assert.equal(await page.locator("[data-testid=camera]").count(), 3);
    assert.equal(await page.locator("[data-testid=time-cursor]").count(), 1);
    assert.ok((await shifted(page)) < 0.01, "what is shown moves while the rest is loaded");
    await page.waitForFunction(() => location.search.includes("e=000000000000"));
    assert.ok(!page.url().includes("#t="), "the token stays in the address bar");
    // What is written in data is never run.
    await page.locator("[data-testid=episode-row]").nth(1).click();
    await page.waitForSelector('main[data-episode="000000000001"]');
    await settled(page);
    await page.keyboard.press("i");
    await page.waitForSelector("aside >> text=onerror");
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    // The cookie opens it again, at the same moment, without the token.
    await page.evaluate(() => (window.warpdata.time_ns = "1760001000500000000"));
    await page.waitForFunction(() => location.search.includes("at=1760001000500000000"));
    await page.reload();
    await settled(page);
    assert.equal(await page.evaluate(() => window.warpdata.time_text), "1760001000500000000");
    assert.equal(await page.locator(".notice").count(), 0);
    // A link to other data says so.
    await page.goto(`${page.url().split("?")[0]}?d=lab%2Fother%40v2`);
    await page.waitForSelector(".notice >> text=lab/other@v2");
  },

  async filter() {
    const page = await open();
    await page.fill("[data-testid=filter]", "not success");
    await page.keyboard.press("Enter");
    await untilRows(page, 1);
    await page.fill("[data-testid=filter]", "lenght > 3");
    await page.keyboard.press("Enter");
    await page.waitForSelector("[role=alert]");
    assert.match(await page.textContent("[role=alert]"), /lenght.*Did you mean 'length'/s);
    assert.doesNotMatch(await page.textContent("[role=alert]"), /__|SELECT/);
    faults.length = 0; // the browser notes every answer that refuses
    await page.fill("[data-testid=filter]", "");
    await page.keyboard.press("Enter");
    await untilRows(page, 3);
    await page.selectOption(".list-head select", "length");
    await page.waitForFunction(() => document.querySelector("[data-testid=episode-row]").dataset.id === "000000000002");
    await page.keyboard.press("Escape");
    await page.click("header >> text=Statistics");
    // How the values of signals lie follows the selection.
    const mean = () => page.getAttribute('[data-testid=distribution][data-signal=joints] .spread', "data-mean");
    await page.waitForSelector('[data-testid=distribution][data-signal=joints] svg[role=img]');
    const all = await mean();
    await page.click("aside >> text=false");
    await untilRows(page, 1);
    await page.waitForFunction((before) => document.querySelector('[data-testid=distribution][data-signal=joints] .spread').dataset.mean !== before, all);
    // A bar is chosen without a mouse.
    await page.locator(".histogram rect[tabindex='0']").first().focus();
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("[data-testid=filter]").value.includes("length >="));
    await untilRows(page, 1);
  },

  async scrub() {
    const page = await open();
    await settled(page);
    const start = 1760000000000000000n;
    let seed = 12345;
    const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
    const late = { front: [2, 3_000_000], wrist: [3, 7_000_000], depth: [4, 1_000_000] };
    for (let turn = 0; turn < (options.turns ?? 50); turn++) {
      const at = BigInt(Math.floor(140_000_000 + random() * 2_230_000_000));
      await page.evaluate((to) => (window.warpdata.time_ns = to), (start + at).toString());
      const isThere = (to) => document.querySelector("[data-testid=time-cursor]").dataset.timeNs === to;
      await page.waitForFunction(isThere, (start + at).toString()); // before, the cameras are those of the last turn
      await settled(page);
      for (const seen of await numbers(page)) {
        const [every, offset] = late[seen.signal];
        const age = start + at - BigInt(seen.ts);
        assert.equal(BigInt(seen.ts) - start, BigInt(seen.number * every) * 20_000_000n + BigInt(offset), JSON.stringify(seen));
        assert.ok(age >= 0n, JSON.stringify({ seen, at: at.toString() }));
        // Depth has a gap: the frame before it holds.
        const inGap = seen.signal === "depth" && seen.number === 10;
        assert.ok(inGap || age < BigInt(every) * 20_000_000n, JSON.stringify({ seen, at: at.toString() }));
      }
      const cursor = await page.getAttribute("[data-testid=time-cursor]", "data-time-ns");
      assert.equal(cursor, (start + at).toString());
    }
    // The pointer on the ruler and the cursor agree.
    const box = await page.locator(".ruler").boundingBox();
    await page.mouse.click(box.x + box.width / 2, box.y + 30);
    await settled(page);
    const line = await page.locator("[data-testid=time-cursor]").boundingBox();
    assert.ok(Math.abs(line.x + line.width / 2 - (box.x + box.width / 2)) < 2);
    // Play moves on, frame by frame.
    const before = await page.evaluate(() => window.warpdata.time_ns);
    await page.keyboard.press("Space");
    await page.waitForFunction((from) => window.warpdata.time_ns > from + 200e6, before);
    await page.keyboard.press("Space");
    await settled(page);
    for (const seen of await numbers(page)) assert.equal(seen.number * late[seen.signal][0] * 20_000_000 + late[seen.signal][1], Number(BigInt(seen.ts) - start));
  },

  async edit() {
    const page = await open();
    await settled(page);
    const other = await open();
    await settled(other);
    await page.click('button:text-is("Drop")');
    await untilRows(page, 2);
    await untilRows(other, 2); // a second browser follows
    await page.click('button:text-is("Undo")');
    await untilRows(page, 3);
    await untilRows(other, 3);
    await page.click('button:text-is("Redo")');
    await untilRows(page, 2);
    await page.keyboard.press("u");
    await untilRows(page, 3);
    // Trim by dragging the handle, then back.
    await page.locator('[data-id="000000000000"]').click();
    await page.waitForSelector('main[data-episode="000000000000"]');
    await settled(page);
    const handle = await page.locator(".handle.start").boundingBox();
    await page.mouse.move(handle.x + 8, handle.y + 12);
    await page.mouse.down();
    await page.mouse.move(handle.x + 300, handle.y + 12, { steps: 5 });
    await page.mouse.up();
    await page.click('button:text-is("Trim")');
    for (const each of [page, other]) await untilShorter(each, 2000);
    await page.keyboard.press("u");
    await page.waitForFunction(() => Number(document.querySelector("[data-testid=time-cursor]").getAttribute("aria-valuemax")) > 2300);
    await page.keyboard.press("h");
    await page.waitForSelector("aside >> text=undo of");
    // What was dropped is named there, and comes back.
    await page.keyboard.press("d");
    await untilRows(page, 2);
    await page.click("[data-testid=undrop]");
    await untilRows(page, 3);
    await page.waitForSelector("[data-testid=undrop]", { state: "detached" });
    faults.length = 0; // the other browser may have asked for what was dropped
  },

  /** What the first browser does to a draft, the second one shows: in the list, and of the episode that is open in both. */
  async draft() {
    const [page, other] = [await open(), await open()];
    await settled(page);
    await settled(other);
    // Who does not wait asks for frames of what was cut off or dropped meanwhile.
    await page.locator(".ruler").click();
    await settled(page);
    await page.keyboard.press("]");
    await page.click('button:text-is("Trim")');
    for (const each of [page, other]) await untilShorter(each, 2000);
    await page.locator("[data-testid=episode-row]").nth(1).click();
    await page.waitForSelector('main[data-episode="000000000001"]');
    await settled(page);
    await page.keyboard.press("d");
    await untilRows(other, 2);
    await page.keyboard.press("u");
    await untilRows(other, 3);
  },

  /** What the list shows of each episode, while another program edits: told whenever it is as awaited. */
  async followed() {
    const page = await open();
    for (const awaited of options.awaited) {
      await page.waitForFunction((wanted) => {
        const rows = [...document.querySelectorAll("[data-testid=episode-row]")];
        const shown = rows.map((row) => [row.dataset.id, [...row.querySelectorAll(".flag:not(.far)")].map((flag) => flag.getAttribute("aria-label"))]);
        return JSON.stringify(shown) === JSON.stringify(wanted);
      }, awaited);
      tell({ seen: true });
    }
    faults.length = 0; // what is asked of an episode just when it is dropped may be refused
  },

  async refused() {
    const page = await open();
    await page.waitForSelector("[data-testid=plot]");
    assert.ok(await page.locator("button", { hasText: "Drop" }).isDisabled());
    assert.match(await page.locator("button", { hasText: "Drop" }).getAttribute("title"), /read/);
    await page.keyboard.press("d");
    await page.waitForSelector("[role=status]");
  },

  async live() {
    const page = await open();
    const live = page.locator("[data-live=true]");
    await live.waitFor();
    const first = Number(await live.getAttribute("data-records"));
    await page.waitForFunction((from) => Number(document.querySelector("[data-live=true]").dataset.records) > from + 20, first);
    await live.click();
    await page.waitForSelector("[data-testid=plot][data-signal=state]");
    await page.waitForSelector("[data-testid=camera]");
    // How it is doing stands in the list and above the episode: what waits, what was lost, what is left.
    for (const place of ["[data-live=true]", ".episode-bar"]) {
      await page.waitForSelector(`${place} [data-count=refused][data-value="2"]`);
      for (const each of ["waiting", "blocked", "free"]) await page.waitForSelector(`${place} [data-count=${each}]`);
    }
    tell({ seen: true }); // the recorder may end now
    await page.waitForFunction(() => !document.querySelector("[data-live=true]"));
    await untilRows(page, options.rows);
    faults.length = 0; // what is asked while it becomes a finished episode may be refused
  },

  async keyboard() {
    const page = await open();
    await settled(page);
    const time = () => page.evaluate(() => window.warpdata.time_text);
    // A key pressed before what it needs has come is not lost.
    let come;
    const marksCome = new Promise((resolve) => (come = resolve));
    await page.route("**/events?*", (route) => marksCome.then(() => route.continue()).catch(() => undefined));
    await page.reload();
    await settled(page);
    const untilAt = (wanted) => page.waitForFunction((text) => window.warpdata.time_text === text, wanted);
    const start = await time();
    await page.keyboard.press("e");
    assert.equal(await time(), start);
    assert.equal(await page.locator("[role=status]").count(), 0);
    come();
    await untilAt("1760000000600000000");
    await page.keyboard.press("Shift+E");
    await page.waitForSelector("[role=status]");
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    await settled(page);
    assert.equal((await numbers(page)).find((each) => each.signal === "front").number, 1);
    await page.keyboard.press("ArrowLeft");
    await settled(page);
    assert.equal((await numbers(page)).find((each) => each.signal === "front").number, 0);
    await page.keyboard.press("g");
    await untilAt("1760000000801000000");
    await page.keyboard.press("w");
    await untilAt("1760000001400000000");
    await page.keyboard.press("+");
    await page.waitForFunction(() => location.search.includes("from="));
    const from = () => page.evaluate(() => new URLSearchParams(location.search).get("from"));
    const before = await from();
    await page.keyboard.press("<");
    await page.waitForFunction((old) => new URLSearchParams(location.search).get("from") !== old, before);
    assert.ok(BigInt(await from()) < BigInt(before));
    await page.keyboard.press(">");
    await page.waitForFunction((old) => new URLSearchParams(location.search).get("from") === old, before);
    await page.keyboard.press("0");
    await page.waitForFunction(() => !location.search.includes("from="));
    await page.keyboard.press("j");
    await page.waitForFunction(() => location.search.includes("e=000000000001"));
    await page.keyboard.press("k");
    await page.waitForFunction(() => location.search.includes("e=000000000000"));
    await page.waitForSelector('main[data-episode="000000000000"]');
    await settled(page);
    // Plots move without a mouse, too.
    const plots = () => page.locator("[data-testid=plot]").evaluateAll((all) => all.map((each) => each.dataset.signal));
    const [first, second] = await plots();
    await page.locator("[data-testid=plot] .fold").first().focus();
    await page.keyboard.press("Alt+ArrowDown");
    await page.waitForFunction((wanted) => document.querySelector("[data-testid=plot]").dataset.signal === wanted, second);
    assert.deepEqual((await plots()).slice(0, 2), [second, first]);
    await page.keyboard.press("?");
    await page.waitForSelector("[role=dialog]");
    await page.waitForFunction(() => document.querySelector("[role=dialog]").contains(document.activeElement));
    await page.keyboard.press("Escape");
    await page.waitForSelector("[role=dialog]", { state: "detached" });
    await page.keyboard.press("c");
    await page.waitForFunction(() => document.querySelectorAll("[data-testid=camera]").length === 6);
    await page.waitForFunction(() => location.search.includes("with=000000000001"));
    await page.keyboard.press("Shift+J");
    await page.waitForFunction(() => location.search.includes("with=000000000002"));
    await page.keyboard.press("c");
    await page.keyboard.press("/");
    await page.keyboard.type("success");
    await page.keyboard.press("Enter");
    await untilRows(page, 2);
    // Everything that can be clicked has a name.
    const nameless = await page.evaluate(
      () => [...document.querySelectorAll("button, a, select, input, [role=img], [role=slider]")].filter(
        (each) => !(each.getAttribute("aria-label") || each.textContent.trim() || each.closest("label")?.textContent.trim()),
      ).length,
    );
    assert.equal(nameless, 0);
  },

  async moments() {
    const page = await open();
    await settled(page);
    await page.evaluate(() => (window.warpdata.time_ns = "1760000000800000000"));
    if (options.late) {
      await page.keyboard.press("m");
      await page.waitForFunction(() => document.querySelector("[role=status]")?.textContent.includes("no vector index"));
      tell({ seen: true });
    }
    do {
      await page.keyboard.press("m");
      await page.waitForTimeout(300);
    } while (options.late && !(await page.locator("[data-testid=moment]").count()));
    const found = page.locator('[data-testid=moment]:not([data-episode="000000000000"])').first();
    await found.waitFor();
    const [episode, at] = [await found.getAttribute("data-episode"), await found.getAttribute("data-at-ns")];
    assert.match(await found.textContent(), options.late ? /distance \d/ : /similarity/);
    await found.click();
    await page.waitForSelector(`main[data-episode="${episode}"]`);
    await settled(page);
    assert.equal(await page.evaluate(() => window.warpdata.time_text), at);
    await page.waitForFunction((wanted) => location.search.includes(`at=${wanted}`), at);
    // Back to where we came from, and from the button of the page.
    await page.click("aside button.link");
    await page.waitForSelector('main[data-episode="000000000000"]');
    assert.equal(await page.evaluate(() => window.warpdata.time_text), "1760000000800000000");
    await page.click("text=moments like this");
    await page.waitForSelector("[data-testid=moment]");
  },

  /** Lines, axes and legends of plots have the colours of the chosen theme, and change with the system's. */
  async theme() {
    const page = await open(url, { colorScheme: "light" });
    await page.waitForSelector("[data-testid=plot] .chart[data-points]");
    const colours = () =>
      page.evaluate(() => {
        const wanted = getComputedStyle(document.documentElement);
        const shown = new Set();
        for (const canvas of document.querySelectorAll("[data-testid=plot] canvas")) {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) shown.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
        }
        const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)).join();
        const legend = [...document.querySelectorAll("[data-testid=plot] .channel i")].map((each) => each.style.background.match(/\d+/g).join());
        const lines = Array.from({ length: 8 }, (_, i) => rgb(wanted.getPropertyValue(`--line-${i}`).trim()));
        return { drawn: lines.some((each) => shown.has(each)), grid: shown.has(rgb(wanted.getPropertyValue("--grid").trim())), legend: legend.every((each) => lines.includes(each)) };
      });
    const right = { drawn: true, grid: true, legend: true };
    const untilRight = async () => {
      await page.waitForSelector("[data-testid=plot] .chart[data-points]");
      await page.waitForTimeout(100);
      assert.deepEqual(await colours(), right);
    };
    await untilRight();
    await page.keyboard.press("t");
    await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");
    await untilRight();
    await page.keyboard.press("t");
    await untilRight();
    const other = await open(url, { colorScheme: "light" });
    await other.emulateMedia({ colorScheme: "dark" });
    await other.waitForFunction(() => getComputedStyle(document.documentElement).getPropertyValue("--page").trim() === "#14181d");
    if (options.picture) await other.screenshot({ path: options.picture });
  },

  /** The cursor of every plot is at the moment of the ruler after a trim and its undo. */
  async trimmed() {
    const page = await open();
    await settled(page);
    await page.evaluate(() => (window.warpdata.time_ns = "1760000001500000000"));
    const apart = () =>
      page.evaluate(() => {
        const x = (each) => each.getBoundingClientRect().x;
        const main = document.querySelector("[data-testid=time-cursor]");
        return Math.max(...[...document.querySelectorAll("[data-testid=plot] .cursor")].map((each) => Math.abs(x(each) - x(main))));
      });
    const untilTogether = async (at) => {
      await settled(page);
      await page.waitForFunction((wanted) => document.querySelector("[data-testid=time-cursor]").dataset.timeNs === wanted, at);
      assert.ok((await apart()) < 2, "plots and ruler show the same moment");
    };
    await untilTogether("1760000001500000000");
    await page.evaluate(() => (window.warpdata.time_ns = "1760000000600000000"));
    await page.keyboard.press("[");
    await page.evaluate(() => (window.warpdata.time_ns = "1760000001500000000"));
    await settled(page); // frames requested before a trim may be past its end
    await page.keyboard.press("x");
    await untilShorter(page, 2000);
    await untilTogether("1760000001500000000");
    await page.keyboard.press("u");
    await page.waitForFunction(() => Number(document.querySelector("[data-testid=time-cursor]").getAttribute("aria-valuemax")) > 2300);
    await untilTogether("1760000001500000000");
    // Frames requested ahead while the trim is stored may be past its end: the page asks for the right ones next.
    const kept = faults.filter((each) => !/status of 400 .*api\/packets/.test(each));
    faults.splice(0, faults.length, ...kept);
  },

  /** Marks name their episode, show the present state, go on in a filtered list, and spare what the filter hides. */
  async marks() {
    const page = await open();
    await settled(page);
    const pressed = (text) => page.locator(`.episode-bar button:has-text("${text}")`).getAttribute("aria-pressed");
    const untilPressed = (text, wanted) =>
      page.waitForFunction(([name, on]) => [...document.querySelectorAll(".episode-bar button")].find((each) => each.textContent.includes(name)).getAttribute("aria-pressed") === on, [text, wanted]);
    const opened = (id) => page.waitForSelector(`main[data-episode="${id}"]`);
    const said = (text) => page.waitForFunction((wanted) => document.querySelector("[role=status]")?.textContent.includes(wanted), text);
    assert.deepEqual([await pressed("success"), await pressed("failure")], ["true", "false"]);
    await page.keyboard.press("n");
    await said("0: success is false");
    await untilPressed("failure", "true");
    await page.keyboard.press("u");
    await untilPressed("success", "true");
    // A filter that hides the open episode: nothing of it is changed.
    await page.fill("[data-testid=filter]", "not success");
    await page.keyboard.press("Enter");
    await untilRows(page, 1);
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("n");
    await said("the filter hides 0");
    // Marked so that the filter hides it: on to the next one of the list.
    await page.fill("[data-testid=filter]", "success");
    await page.keyboard.press("Enter");
    await untilRows(page, 2);
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("n");
    await opened("000000000002");
    await said("0: success is false");
    await untilRows(page, 1);
    if (options.picture) await page.screenshot({ path: options.picture });
  },

  /** Two episodes side by side have one axis per signal. */
  async compared() {
    const page = await open();
    await page.waitForSelector("[data-testid=plot] .chart[data-points]");
    await page.keyboard.press("c");
    await page.waitForFunction(() => document.querySelectorAll("[data-testid=plot][data-signal=x] .chart[data-points]").length === 2);
    const picture = (number) =>
      page.evaluate((at) => {
        const canvas = document.querySelectorAll("[data-testid=plot][data-signal=x] canvas")[at];
        const { data } = canvas.getContext("2d").getImageData(0, 0, Math.round(68 * devicePixelRatio), canvas.height);
        return data.join();
      }, number);
    await page.waitForTimeout(200);
    if (options.picture) await page.screenshot({ path: options.picture });
    assert.equal(await picture(0), await picture(1), "the labels of the axes differ");
    const alone = await picture(0);
    await page.keyboard.press("c");
    await page.waitForFunction(() => document.querySelectorAll("[data-testid=plot][data-signal=x]").length === 1);
    await page.waitForTimeout(200);
    assert.notEqual(await picture(0), alone, "alone, a plot has its own axis again");
  },

  /** Findings of the open episode follow its edits. */
  async findings() {
    const page = await open();
    await page.waitForSelector(".episode-bar .badge >> text=gap");
    await page.evaluate(() => (window.warpdata.time_ns = "295000000"));
    await page.keyboard.press("]");
    await page.keyboard.press("x");
    await page.waitForSelector(".episode-bar .badge", { state: "detached" });
    await page.keyboard.press("u");
    await page.waitForSelector(".episode-bar .badge >> text=gap");
    await page.keyboard.press("r");
    await page.waitForSelector(".episode-bar .badge", { state: "detached" });
  },

  /** The open episode shows what the whole set gives for it, also where that is as severe as what it had alone. */
  async comparedFindings() {
    const page = await open();
    await page.waitForSelector(".episode-bar .badge >> text=dead-channel");
    await page.waitForSelector(".episode-bar .badge >> text=frozen-camera", { state: "detached" });
  },

  async looks() {
    const back = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await open(url, { colorScheme: "dark" });
    const light = await open(url, { colorScheme: "light" });
    const [a, b] = [await back(dark), await back(light)];
    assert.notEqual(a, b);
    await dark.keyboard.press("t");
    await dark.waitForFunction((wanted) => getComputedStyle(document.body).backgroundColor === wanted, b);
    await dark.waitForFunction(() => location.search.includes("theme=light"));
    const phone = await open(url, { viewport: { width: 390, height: 844 } });
    await phone.waitForSelector("[data-testid=plot]");
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 390, `the page is ${wide} wide`);
    await light.close();
  },

  async tensors() {
    const page = await open();
    await settled(page);
    assert.equal(await page.locator("[data-testid=camera]").count(), 3);
    for (const row of [0, 7, 33]) {
      await page.evaluate((at) => (window.warpdata.time_ns = at), options.times[row]);
      await settled(page);
      for (const seen of await numbers(page)) assert.equal(seen.number, row, JSON.stringify(seen));
    }
  },

  /** A camera of another program: groups may be long, and frames stored out of order. */
  async foreign() {
    const page = await open();
    await settled(page);
    const shows = async (row) => {
      await settled(page);
      assert.deepEqual((await numbers(page)).map((each) => [each.row, each.number]), [[row, row]]);
    };
    // There and back, across groups and inside one, forward and backward.
    for (const row of options.rows) {
      await page.evaluate((at) => (window.warpdata.time_ns = at), options.times[row]);
      await shows(row);
    }
    let row = options.rows.at(-1);
    for (const key of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"]) {
      await page.keyboard.press(key);
      await shows((row += key === "ArrowRight" ? 1 : -1));
    }
    // Many moves at once: the last one counts.
    await page.evaluate((times) => times.forEach((at) => (window.warpdata.time_ns = at)), options.rows.map((each) => options.times[each]));
    await shows(options.rows.at(-1));
    // Played, every frame that is seen is the right one, and the end is reached.
    await page.keyboard.press("Home");
    await page.selectOption(".controls select", "4");
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press("Space");
    await page.waitForFunction((last) => Number(document.querySelector("[data-testid=camera]").dataset.row) === last, options.times.length - 1);
    await shows(options.times.length - 1);
    assert.equal(page.asked.filter((each) => each === "frame").length, 0, "the browser decodes it");
  },

  async site() {
    const page = await open();
    await settled(page);
    assert.equal(await rows(page), 3);
    assert.ok(await page.locator("button", { hasText: "Drop" }).isDisabled());
    await page.fill("[data-testid=filter]", "not success and length >= 100");
    await page.keyboard.press("Enter");
    await untilRows(page, 1);
    const finds = async (where, count) => {
      await page.fill("[data-testid=filter]", where);
      await page.keyboard.press("Enter");
      await untilRows(page, count);
    };
    await finds("length in (100, 80)", 2);
    await finds("task like '%cube' or not (success)", 3);
    await finds("(length between 90 and 130) and (success is null or (success and task <> 'a and b'))", 1);
    await finds("env_id is null", 3);
    for (const [wrong, said] of [["length ~ 3", /~ 3/], ["lenght > 3", /no column lenght.*length/], ["length >", /value/], ["(success", /\) is missing/]]) {
      await page.fill("[data-testid=filter]", wrong);
      await page.keyboard.press("Enter");
      await page.waitForFunction((text) => new RegExp(text).test(document.querySelector("[role=alert]")?.textContent), said.source);
    }
    // Statistics are those of the selection, clicked twice into one another; health flags are there.
    await finds("", 3);
    await page.keyboard.press("Escape");
    await page.keyboard.press("o");
    await page.click("aside .count >> text=true");
    await page.waitForSelector("aside >> text=2 episodes satisfy the filter");
    await page.click("aside .count >> text=pick the cube");
    await untilRows(page, 2);
    await page.waitForSelector(`aside >> text=${options.checked ?? 0} of 3 checked`);
    await page.locator("[data-testid=distribution][data-signal=joints] summary").click();
    await page.waitForSelector("[data-testid=distribution][data-signal=joints] .spread svg");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await page.fill("[data-testid=filter]", "success");
    await page.keyboard.press("Enter");
    await untilRows(page, 2);
    // Values at the cursor are those of the records, with their age.
    await page.locator('[data-id="000000000000"]').click();
    await page.waitForSelector('main[data-episode="000000000000"]');
    await page.evaluate(() => (window.warpdata.time_ns = "1760000000700000011"));
    await page.waitForFunction(() => document.querySelector("[data-signal=joints] .age")?.textContent === "age 11 ns");
    const shown = await page.textContent("[data-signal=joints] .channel b");
    assert.equal(Number(shown), Number(Math.fround(Math.sin(35 / 20)).toPrecision(5)));
    await page.keyboard.press("w");
    await page.waitForFunction(() => window.warpdata.time_text === "1760000001400000000");
    // Zoomed in, plots are drawn from the records themselves.
    for (let i = 0; i < 6; i++) await page.keyboard.press("+");
    await settled(page);
  },

  /** Sound is decoded and played by the browser at the place of the cursor; point clouds have a plot of their sizes. */
  async sound() {
    const page = await open();
    const heard = () => page.evaluate(() => {
      const { currentTime, duration, paused, error, readyState } = document.querySelector("[data-testid=sound]");
      return { currentTime, duration, paused, error: error?.message ?? null, readyState };
    });
    await page.waitForFunction(() => document.querySelector("[data-testid=sound]")?.readyState === 4);
    const before = await heard();
    assert.deepEqual([before.error, before.paused], [null, true]);
    assert.ok(Math.abs(before.duration - options.seconds) < 0.01, `${before.duration} s of sound`);
    for (const name of ["mic", "cloud"]) await page.waitForSelector(`[data-testid=plot][data-signal="${name}"]`);
    for (const _ of "12") await page.click(".sound span"); // browsers play sound once a person has used the page
    await page.evaluate(() => document.activeElement.blur()); // else the key is for the switch
    await page.keyboard.press(" ");
    await page.waitForFunction(() => document.querySelector("[data-testid=sound]").currentTime > 1);
    const [at, sound] = [await page.evaluate(() => Number(window.warpdata.time_text)), await heard()];
    assert.equal(sound.paused, false);
    assert.ok(Math.abs(at / 1e9 - sound.currentTime) < 0.3, `the cursor is at ${at}, the sound at ${sound.currentTime} s`);
    await page.keyboard.press(" ");
    await page.waitForFunction(() => document.querySelector("[data-testid=sound]").paused);
    await page.evaluate(() => (window.warpdata.time_ns = "500000000"));
    await page.waitForFunction(() => Math.abs(document.querySelector("[data-testid=sound]").currentTime - 0.5) < 0.13);
  },

  async astray() {
    const page = await open();
    await page.waitForSelector(".camera [role=alert] >> text=nothing at");
    faults.length = 0; // the browser notes every answer that refuses
  },

  async unshared() {
    const page = await open();
    await page.waitForSelector(".camera [role=alert]");
    assert.match(await page.textContent(".camera [role=alert]"), /CORS.*Content-Range/);
    faults.length = 0; // the browser notes every answer that it keeps from the page
  },

  /** Nothing is here yet: the page says so once it knows, and never before. */
  async empty() {
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.addInitScript(() => {
      window.said = [];
      new MutationObserver(() => window.said.push(document.body?.textContent ?? "")).observe(document, { childList: true, subtree: true, characterData: true });
    });
    await page.goto(url);
    if (options.rows) {
      await page.waitForSelector("[data-testid=episode-row]");
      assert.ok(!(await page.evaluate(() => window.said.some((each) => /No episodes|No episode |0 episodes|Choose an/.test(each)))));
    } else await page.waitForSelector("text=No episodes yet: record one");
    await context.close();
  },

  async many() {
    const page = await open();
    await page.waitForFunction(() => document.querySelector(".list-head").textContent.includes("episodes"));
    assert.ok((await rows(page)) < 60, "only the rows that are seen exist");
    await page.evaluate(() => (document.querySelector(".rows").scrollTop = 1e7));
    await page.waitForSelector(`[data-id="${options.last}"]`);
  },
};

const tell = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...given] = JSON.parse(line);
  [url, options] = given;
  faults.length = 0;
  let failed = null;
  try {
    await SCENARIOS[name]();
    assert.deepEqual(faults, []);
  } catch (error) {
    failed = `${inspect(error)}\nfaults: ${inspect(faults)}`;
  }
  await Promise.all(browser.contexts().map((each) => each.close()));
  tell({ failed });
}
await browser.close();
