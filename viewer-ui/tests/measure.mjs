// How long a page takes, in a real browser: `node measure.mjs NAME URL OPTIONS` prints one line of JSON.
import assert from "node:assert/strict";
import { launch, numbers, settled } from "./browser.mjs";

const [name, url, given = "{}"] = process.argv.slice(2);
const options = JSON.parse(given);
const browser = await launch();
const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 } })).newPage();
page.setDefaultTimeout(180_000);

const drawn = () => page.waitForSelector(".chart[data-points]", { state: "attached" });

const MEASURES = {
  /** Milliseconds from the start of the navigation until the first rows are on the screen. */
  async list() {
    await page.addInitScript(() => {
      const watch = new MutationObserver(() => {
        if (!document.querySelector("[data-testid=episode-row]")) return;
        watch.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(() => (window.painted_ms = performance.now())));
      });
      watch.observe(document, { childList: true, subtree: true });
    });
    await page.goto(url);
    const ms = await (await page.waitForFunction(() => window.painted_ms)).jsonValue();
    return { ms, rows: await page.locator(".list-head span").first().textContent() };
  },

  /** Milliseconds from the pointer on the ruler to the right frame of every camera; its number is read from its pixels. */
  async scrub() {
    await page.goto(url);
    await settled(page);
    await drawn();
    // The page may act on the raw event, which comes before the one that waits for the next picture of the screen.
    await page.evaluate(() => {
      for (const kind of ["pointerrawupdate", "pointermove"]) window.addEventListener(kind, (event) => (window.moved_ms = event.timeStamp), true);
    });
    const box = await page.locator(".ruler").boundingBox();
    const y = box.y + 30;
    await page.mouse.move(box.x + box.width / 2, y);
    await page.mouse.down();
    await settled(page);
    let seed = 12345;
    const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
    const took = [];
    let last = 0;
    for (let turn = 0; turn < options.turns; turn++) {
      let x = last;
      while (x === last) x = Math.round(box.x + 76 + random() * (box.width - 96));
      last = x;
      await page.evaluate(() => {
        const before = window.warpdata.time_text;
        window.measured = new Promise((resolve) => {
          const look = () => {
            const isThere = window.warpdata.time_text !== before && window.warpdata.is_settled;
            if (isThere) resolve(performance.now() - window.moved_ms);
            else requestAnimationFrame(look);
          };
          look();
        });
      });
      await page.mouse.move(x, y);
      took.push(await page.evaluate(() => window.measured));
      const at = BigInt(await page.evaluate(() => window.warpdata.time_text)) - BigInt(options.start_ns);
      const wanted = Number(at / BigInt(options.frame_ns));
      const seen = await numbers(page);
      assert.equal(seen.length, options.cameras);
      for (const each of seen) assert.equal(each.number, wanted, JSON.stringify(each));
    }
    return { ms: took };
  },

  /** Milliseconds from the click on an episode to its plot, the first time and after a zoom. */
  async points() {
    await page.goto(url);
    await page.waitForSelector(`[data-id="${options.small}"].chosen`);
    await drawn();
    // Armed before the key or the click goes out, so that neither can overtake it.
    const until = (selector) =>
      page.evaluate((wanted) => {
        window.measured = new Promise((resolve) => {
          let began = 0;
          const begin = (event) => (began ||= event.timeStamp);
          for (const kind of ["click", "keydown"]) window.addEventListener(kind, begin, { capture: true, once: true });
          const look = () => (began && document.querySelector(wanted) ? requestAnimationFrame(() => resolve(performance.now() - began)) : requestAnimationFrame(look));
          look();
        });
      }, selector);
    const measured = () => page.evaluate(() => window.measured);
    await until(`main[data-episode="${options.big}"] .chart[data-points]`);
    await page.click(`[data-id="${options.big}"]`);
    const first_ms = await measured();
    const points = Number(await page.getAttribute(".chart", "data-points"));
    await page.keyboard.press("+");
    await page.waitForFunction(() => location.search.includes("from="));
    await page.evaluate(() => document.querySelector(".chart").removeAttribute("data-points"));
    await until(".chart[data-points]");
    await page.keyboard.press("0");
    return { first_ms, again_ms: await measured(), points };
  },

  /** Until the first frame of every camera and the plots are there; how many small pictures of the list were asked for before that. */
  async first() {
    let early = 0;
    const isThere = () => window.warpdata?.is_settled && document.querySelector(".camera canvas[data-row]") && document.querySelector(".chart[data-points]");
    await page.route("**/api/thumbnail*", async (route) => {
      if (!(await page.evaluate(isThere))) early++;
      await route.abort(); // what comes later is not counted
    });
    await page.goto(url);
    await settled(page);
    await drawn();
    return { ms: await page.evaluate(() => performance.now()), early };
  },
};

try {
  const measured = await MEASURES[name]();
  await page.unrouteAll({ behavior: "wait" }); // a handler that still asks the page must not meet a closed one
  console.log(JSON.stringify(measured));
} finally {
  await browser.close();
}
