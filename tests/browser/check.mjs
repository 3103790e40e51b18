// Opens what bpfprof wrote in headless Chromium, uses it as a person would, and fails where the page shows an error.
//
//   node check.mjs CHROMIUM flamegraph FILE FUNCTION     FUNCTION: text of a frame that is drawn, wide enough to be clicked
//   node check.mjs CHROMIUM speedscope FILE FUNCTION     FUNCTION: name of a frame of the first profile
//   node check.mjs CHROMIUM page FILE                    only opens the SVG
//
// Prints each problem on a line and exits with 1, or prints "ok" and exits with 0.
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, kind, file, wanted] = process.argv.slice(2);
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const PATIENCE_MS = 60_000;
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

async function openSvg(page) {
  const address = pathToFileURL(file).href;
  watch(page, (url) => url.split("#")[0] === address);
  await page.goto(address);
  expect((await page.locator("parsererror").count()) === 0, "the SVG is not well-formed");
  expect(await page.evaluate(() => document.documentElement.hasAttribute("data-scripted")), "the script did not start");
}

const foundText = (page) => page.locator("#found").textContent();
const hash = (page) => page.evaluate(() => location.hash);
const hits = (page) => page.locator("#frames g.hit");
const shareOf = (frame) => frame.locator("rect").evaluate((rect) => parseFloat(rect.getAttribute("width")));

async function searchByKeys(page) {
  await page.keyboard.press("Control+f");
  expect(await page.evaluate(() => document.activeElement.id === "search"), "Ctrl-F does not reach the search field");
  await page.keyboard.type(wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const named = await page.evaluate(
    (text) => [...document.querySelectorAll("#frames g > title")].filter((title) => title.textContent.includes(text)).length,
    wanted,
  );
  expect(named > 0, `no frame is named ${wanted}`);
  expect((await hits(page).count()) === named, `search marks ${await hits(page).count()} frames of ${named}`);
  const share = await foundText(page);
  expect(/^\d+\.\d+% matched · [\d.]+ (s|ms|µs) · \d+ frames?$/.test(share), `share of the match reads: ${share}`);
  expect(!share.startsWith("0.00%"), "the match has no time");
  await page.fill("#search", "(");
  expect((await foundText(page)) === "not a regular expression", "a broken expression is not told");
  await page.fill("#search", "^no such function$");
  expect((await hits(page).count()) === 0, "search marks frames that do not match");
  await page.fill("#search", wanted.replace(/[.*+?^${}()|[\]\\]/g, "."));
}

async function zoomAndReset(page) {
  const frame = page.locator("#frames g.hit:not(.thin):not(.gone)").first();
  const before = await shareOf(frame);
  expect(before < 99, `the frame fills the graph before the zoom (${before}%)`);
  await frame.hover();
  const told = await page.locator("#details text").textContent();
  expect(told.includes(wanted) && /% of all · .*% of parent/.test(told), `details read: ${told}`);
  await frame.click();
  expect((await shareOf(frame)) === 100, "a click does not zoom");
  expect((await page.locator("#frames g.gone").count()) > 0, "frames beside the zoomed one are still drawn");
  expect(/zoom=\d+/.test(await hash(page)), "the address does not keep the zoom");
  await page.reload();
  expect((await shareOf(hits(page).first())) === 100, "a reload loses the zoom or the search");
  await page.click("#reset");
  expect((await shareOf(hits(page).first())) === before, "the button does not reset the zoom");
  expect(await page.locator("#reset").isDisabled(), "reset can be pressed with nothing to reset");
}

async function useTheKeyboard(page) {
  await page.keyboard.press("/");
  await page.keyboard.press("Escape");
  expect((await hits(page).count()) === 0, "Escape does not clear the search");
  await page.keyboard.press("Escape");
  await page.locator("#frames g[tabindex='0']").focus();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  expect((await shareOf(page.locator("#frames g:focus"))) === 100, "Enter does not zoom");
  await page.keyboard.press("Escape");
  expect((await hash(page)) === "", `Escape does not reset the zoom: ${await hash(page)}`);
}

async function filter(page) {
  const total = async (button) => {
    await page.click(button);
    await page.locator("#frames g[class]").first().hover();
    return (await page.locator("#details text").textContent()).split(" — ")[1].split(" · ")[0];
  };
  const both = await total("#show-both");
  const cpu = await total("#show-cpu");
  const waits = await total("#show-waits");
  expect(new Set([both, cpu, waits]).size === 3, `the filter changes nothing: ${both} | ${cpu} | ${waits}`);
  await page.click("#show-both");
  const top = async () => (await page.locator("#frames g[class]").first().boundingBox()).y;
  const flame = await top();
  await page.click("#icicle");
  expect((await top()) < flame, "the root is not at the top of an icicle graph");
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
  const shown = body.getByText(/process .* \/ thread /).first().waitFor().then(() => true, () => false);
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
  server.close();
}

const browser = await chromium.launch({ executablePath, args: FLAGS });
try {
  const page = await browser.newPage({ viewport: { width: 1400, height: 850 } });
  page.setDefaultTimeout(PATIENCE_MS);
  if (kind === "speedscope") {
    await openSpeedscope(page);
  } else {
    await openSvg(page);
    if (kind === "flamegraph" && problems.length === 0) {
      for (const step of [searchByKeys, zoomAndReset, useTheKeyboard, filter]) await step(page);
    }
  }
} catch (error) {
  problems.push(`${error}`);
} finally {
  await browser.close();
}
console.log(problems.join("\n") || "ok");
process.exit(problems.length ? 1 : 0);
