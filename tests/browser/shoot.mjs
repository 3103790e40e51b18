// Pictures of all views of a page, or of an SVG: node shoot.mjs CHROMIUM FILE FOLDER [light|dark] [WIDTH HEIGHT] [HASH...]
import path from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, file, folder, colorScheme = "light", width = "1280", height = "800", ...hashes] = process.argv.slice(2);
const VIEWS = ["flame", "waits", "source", "threads", "gil", "tree", "quality"].map((tab) => (tab === "flame" ? "" : `tab=${tab}`));
const isSvg = file.endsWith(".svg");
const browser = await chromium.launch({ executablePath, args: ["--headless", "--no-sandbox", "--disable-gpu"] });
const context = await browser.newContext({ viewport: { width: Number(width), height: Number(height) }, colorScheme, reducedMotion: "reduce" });
for (const hash of hashes.length ? hashes : isSvg ? [""] : VIEWS) {
  const page = await context.newPage();
  page.on("console", (said) => console.log(said.type(), said.text()));
  page.on("pageerror", (error) => console.log("uncaught", error.message));
  await page.goto(`${pathToFileURL(file).href}#${hash}`);
  await page.waitForFunction(() => (document.documentElement.dataset.ready ?? document.documentElement.dataset.scripted) !== undefined);
  await page.waitForTimeout(100); // the last frame is on the screen
  const name = `${hash.replace(/[^a-z0-9]+/gi, "-") || (isSvg ? "svg" : "flame")}-${colorScheme}-${width}.png`;
  await page.screenshot({ path: path.join(folder, name), fullPage: Number(width) < 900 && !isSvg });
  await page.close();
}
await browser.close();
