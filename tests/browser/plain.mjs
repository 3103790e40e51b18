// Opens a page of which nothing moves, as it was written: node plain.mjs CHROMIUM FILE.
//
// Light and dark by axe-core; 360 px wide nothing sticks out; nothing is asked for. Prints one problem a line and exits
// with 1, or prints "ok" and exits with 0.
import fs from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, file] = process.argv.slice(2);
const problems = [];
const browser = await chromium.launch({ executablePath, args: ["--headless", "--no-sandbox", "--disable-gpu"], timeout: 120_000 });
const axe = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");

async function opened(options) {
  const page = await browser.newPage(options);
  page.setDefaultTimeout(120_000); // beside others on a busy machine
  page.on("console", (said) => said.type() === "error" && problems.push(`console: ${said.text()}`));
  page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
  page.on("request", (request) => request.url().startsWith("file:") || problems.push(`asked for ${request.url().slice(0, 80)}`));
  await page.goto(pathToFileURL(file).href);
  await page.locator("html[data-ready=true]").waitFor();
  return page;
}

for (const colorScheme of ["light", "dark"]) {
  await opened({ colorScheme }); // by its own rules; axe is a script of somebody else
  const page = await opened({ colorScheme, bypassCSP: true });
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, impact, nodes } of violations.filter(({ impact }) => ["serious", "critical"].includes(impact)))
    problems.push(`axe, ${colorScheme}: ${impact} ${id}: ${nodes[0].html.slice(0, 120)} ${nodes[0].failureSummary?.slice(0, 200)}`);
}
const phone = await opened({ viewport: { width: 360, height: 640 } });
const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
if (wide > 360) problems.push(`${wide} px wide on a phone`);
await browser.close();
console.log(problems.length ? problems.join("\n") : "ok");
process.exitCode = problems.length ? 1 : 0;
