// Opens what bpfprof wrote for speedscope in headless Chromium, and fails where the page shows an error.
//
//   node check.mjs CHROMIUM speedscope FILE FUNCTION [COPY]     FUNCTION: name of a frame of the first profile
//
// COPY is written: what speedscope exports of what it read. Prints each problem on a line and exits with 1, or prints "ok" and exits with 0.
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, , file, wanted, copy] = process.argv.slice(2);
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const PATIENCE_MS = 120_000;
const SPEEDSCOPE = fileURLToPath(new URL("node_modules/speedscope/dist/release", import.meta.url));
const SPEEDSCOPE_ERRORS = /Something went wrong|Unrecognized format|Failed to|error while/i;
const MEDIA_TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };

const problems = [];
const expect = (truth, problem) => truth || problems.push(problem);

// Everything a page can say went wrong; `mayLoad` tells which addresses it may ask for.
function watch(page, mayLoad) {
  page.on("console", (said) => said.type() === "error" && problems.push(`console: ${said.text()}`));
  page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => expect(mayLoad(request.url()), `asked for ${request.url()}`));
  page.on("requestfailed", (request) => problems.push(`could not load ${request.url()}`));
  page.on("crash", () => problems.push("the page crashed"));
}

function serve() {
  const server = http.createServer((request, response) => {
    const name = new URL(request.url, "http://localhost").pathname;
    const source = name === "/profile.json" ? file : path.join(SPEEDSCOPE, path.normalize(name));
    fs.readFile(source, (error, content) => {
      response.writeHead(error ? 404 : 200, { "content-type": MEDIA_TYPES[path.extname(source)] ?? "application/octet-stream" });
      response.end(content);
    });
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

// Resolves to true once a thread is shown, to false once speedscope says that it cannot read the file.
function loaded(page) {
  const refused = new Promise((resolve) => page.once("dialog", () => resolve(false)));
  const body = page.locator("body");
  const shown = body.getByText(/all threads|process .* \/ thread /).first().waitFor().then(() => true, () => false);
  const failed = body.getByText(SPEEDSCOPE_ERRORS).first().waitFor().then(() => false, () => false);
  return Promise.race([refused, shown, failed]);
}

async function openSpeedscope(page) {
  const server = await serve();
  const site = `http://127.0.0.1:${server.address().port}`;
  watch(page, (url) => url.startsWith(site));
  const shown = loaded(page);
  await page.goto(`${site}/index.html#profileURL=${encodeURIComponent(`${site}/profile.json`)}`);
  expect(await shown, "speedscope shows no thread");
  const complaint = SPEEDSCOPE_ERRORS.exec(await page.evaluate(() => document.body.innerText));
  expect(!complaint, `speedscope says: ${complaint}`);
  if (problems.length === 0) {
    await page.keyboard.press("3"); // the sandwich view lists functions as text
    const row = page.getByText(wanted, { exact: true }).first();
    await row.waitFor().catch(() => problems.push(`speedscope does not list ${wanted}`));
  }
  if (copy && problems.length === 0) {
    const saved = page.waitForEvent("download");
    await page.keyboard.press("Control+s");
    await (await saved).saveAs(copy);
  }
  server.close();
}

const browser = await chromium.launch({ executablePath, args: FLAGS, timeout: 120_000 });
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 850 } });
  page.setDefaultTimeout(PATIENCE_MS);
  await openSpeedscope(page);
} catch (error) {
  problems.push(`${error}`);
} finally {
  await browser.close();
}
console.log(problems.join("\n") || "ok");
process.exit(problems.length ? 1 : 0);
