// What tests and measurements share: a browser, and what is to be read from the page in it.
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const BITS = 10;
const PLACES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export const launch = () =>
  chromium.launch({ executablePath: PLACES.find((each) => each && existsSync(each)), args: ["--no-sandbox"] });

/** Until every camera shows the frame that belongs to the cursor. */
export const settled = (page) =>
  page.waitForFunction(() => {
    const cameras = [...document.querySelectorAll("[data-testid=camera]")];
    return cameras.length > 0 && cameras.every((each) => each.dataset.row !== undefined) && window.warpdata.is_settled;
  });

/** The number in the pixels of every camera: white blocks are ones. */
export const numbers = (page) =>
  page.evaluate((bits) => {
    return [...document.querySelectorAll("[data-testid=camera]")].map((canvas) => {
      const pixels = canvas.getContext("2d").getImageData(0, 8, canvas.width, 1).data;
      let number = 0;
      for (let bit = 0; bit < bits; bit++) if (pixels[(bit * 16 + 8) * 4 + 1] > 127) number |= 1 << bit;
      return { signal: canvas.dataset.signal, row: Number(canvas.dataset.row), ts: canvas.dataset.tsNs, number };
    });
  }, BITS);
