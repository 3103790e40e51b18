// Opens what a notebook shows of a cell, a page in a sandboxed frame, and uses it.
//
// node cell.mjs CHROMIUM FILE: FILE holds the HTML of the output. Prints one problem a line and exits with 1, or prints
// "ok" and exits with 0.
import fs from "node:fs";
import { chromium } from "playwright-core";

const [executablePath, file] = process.argv.slice(2);
const problems = [];
const browser = await chromium.launch({ executablePath, args: ["--headless", "--no-sandbox", "--disable-gpu"], timeout: 120_000 });
const page = await browser.newPage({ viewport: { width: 1000, height: 900 }, reducedMotion: "reduce" });
page.setDefaultTimeout(120_000);
page.on("console", (said) => said.type() === "error" && problems.push(`console: ${said.text()}`));
page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
// As a server of notebooks gives it: the address of the frame is not that of what is around it.
await page.route("**/*", (route) => {
  if (new URL(route.request().url()).pathname === "/lab")
    return route.fulfill({ contentType: "text/html", body: `<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">${fs.readFileSync(file, "utf8")}` });
  problems.push(`asked for ${route.request().url().slice(0, 80)}`);
  return route.abort();
});
await page.goto("http://notebook.invalid/lab");
const frame = page.frameLocator("iframe");
const root = frame.locator("html[data-ready]");
await root.waitFor();
if ((await root.getAttribute("data-ready")) !== "true") problems.push("the page did not open");
for (const tab of ["Waits", "Threads", "Tree"]) {
  await frame.getByRole("tab", { name: tab }).click();
  const chosen = await frame.locator('[role="tab"][aria-selected="true"]').textContent();
  if (!chosen.includes(tab)) problems.push(`${tab} was clicked, and ${chosen} is shown`);
}
await frame.locator("#search, input[type=search]").first().fill("burn");
if (page.url() !== "http://notebook.invalid/lab") problems.push(`the address became ${page.url()}`);
if (process.argv[4]) await page.screenshot({ path: process.argv[4] });
await browser.close();
console.log(problems.length ? problems.join("\n") : "ok");
process.exitCode = problems.length ? 1 : 0;
