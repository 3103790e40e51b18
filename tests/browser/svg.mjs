// Opens SVGs of bpfprof in headless Chromium and uses them as a person would.
//
// node svg.mjs CHROMIUM KIND FILE WANTED ...: kind is "opens" (without an error), "use" (every interaction; WANTED: the label
// of a frame that is wide enough to be clicked), "deep", "deep-phone" (a click on any frame shows it and its waits), "threads" (WANTED:
// how many hottest leaves there are) or "look" (contrast, texts, a phone, paper). WANTED of others is empty.
// Prints one problem a line and exits with 1, or prints "ok" and exits with 0; lines that begin with # are figures.
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, ...cases] = process.argv.slice(2);
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"];
const problems = [];
let address = "";
let wanted = "";
const expect = (truth, problem) => truth || problems.push(problem);

async function open(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  page.on("console", (said) => said.type() === "error" && problems.push(`console: ${said.text()}`));
  page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => expect(request.url().split("#")[0] === address, `asked for ${request.url()}`));
  await page.goto(address);
  expect((await page.locator("parsererror").count()) === 0, "the SVG is not well-formed");
  expect(await page.evaluate(() => document.documentElement.hasAttribute("data-scripted")), "the script did not start");
  return page;
}

const told = (page) => page.locator("#told").textContent();
const hash = (page) => page.evaluate(() => new URLSearchParams(location.hash.slice(1)).toString());
const hits = (page) => page.locator("#frames g.hit");
const shareOf = (frame) => frame.locator("rect").evaluate((rect) => parseFloat(rect.getAttribute("width")));
const crumb = (page) => page.locator(".crumbs [aria-current]").getAttribute("title");
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const labelOf = (group) => group.evaluate((it) => it.querySelector("title").textContent.split("\n")[0]);

async function searchIt(page) {
  const isSearching = () => page.evaluate(() => document.activeElement?.id === "search");
  await page.keyboard.press("Control+f");
  expect(!(await isSearching()), "Ctrl-F, which is the browser's, reaches the search field");
  await page.keyboard.press("/");
  expect(await isSearching(), "/ does not reach the search field");
  await page.keyboard.type(escaped(wanted));
  const named = await page.evaluate((text) => [...document.querySelectorAll("#frames g > title")].filter((title) => title.textContent.startsWith(text)).length, wanted);
  expect(named > 0 && (await hits(page).count()) === named, `search marks ${await hits(page).count()} frames of ${named}`);
  const share = await page.locator("#found").textContent();
  expect(/^[\d.<]+% · [\d.]+ (s|ms|µs) · \d+ frames?$/.test(share) && !share.startsWith("0%"), `share of the match reads: ${share}`);
  await page.keyboard.press("Enter");
  expect((await told(page)).startsWith(wanted), `Enter leads to ${await told(page)}`);
  await page.fill("#search", "(");
  expect((await page.locator("#found").textContent()) === "not a regular expression", "a broken expression is not told");
  await page.fill("#search", "^no such function$");
  expect((await hits(page).count()) === 0, "search marks frames that do not match");
  await page.fill("#search", escaped(wanted));
}

async function zoomAndGoBack(page) {
  const frame = page.locator("#frames g.hit:not(.thin):not(.gone)").first();
  const before = await shareOf(frame);
  expect(before < 99, `the frame fills the graph before the zoom (${before}%)`);
  await frame.hover();
  expect((await told(page)).startsWith(wanted) && /% of all · .*% of its caller/.test(await told(page)), `details read: ${await told(page)}`);
  await frame.click();
  expect((await shareOf(frame)) === 100 && (await crumb(page)) === wanted, "a click does not zoom");
  expect((await page.locator("#found").textContent()).includes("100% of the zoomed"), "the share of the match is not that of the zoomed");
  const link = page.url();
  expect(decodeURIComponent(decodeURIComponent(link)).includes(wanted.split(" ")[0]), `the address has no names: ${link}`);
  await page.reload();
  expect((await crumb(page)) === wanted && (await hits(page).count()) > 0, "a reload loses the zoom or the search");
  await page.keyboard.press("Escape");
  expect((await hits(page).count()) === 0, "Esc does not clear the search");
  await page.click("#reset");
  expect((await crumb(page)) === "all" && !(await hash(page)).includes("zoom"), "the first link does not undo the zoom");
  await page.goBack();
  expect((await crumb(page)) === wanted, `back leads to ${await crumb(page)}`);
  await page.keyboard.press("Escape");
  expect((await crumb(page)) === "all", "Esc does not undo the zoom");
}

async function useTheKeyboard(page) {
  await page.locator("#frames g[tabindex='0']").focus();
  for (const key of ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"]) await page.keyboard.press(key);
  const focused = await labelOf(page.locator("#frames g:focus"));
  await page.keyboard.press("Enter");
  expect((await crumb(page)) === focused, `Enter zooms to ${await crumb(page)}, not ${focused}`);
  await page.keyboard.press("ArrowDown");
  const name = await labelOf(page.locator("#frames g:focus"));
  const copied = async (press, has) => {
    await press();
    // It says so when the clipboard has it.
    const says = (wanted) => ["copied: ", ...wanted].every((text) => document.querySelector("#told").textContent.includes(text));
    await page.waitForFunction(says, has, { timeout: 120_000 }).catch(async () => expect(false, `it says: ${await told(page)}`));
    return page.evaluate(() => navigator.clipboard.readText());
  };
  expect((await copied(() => page.keyboard.press("c"), [name])) === name && name.length > 2, `copied: not ${name}`);
  const stack = (await copied(() => page.keyboard.press("Shift+C"), ["; ", name])).split("\n");
  expect(stack.length >= 3 && stack.at(-1) === name && stack.includes(focused), `copied: ${stack}`);
  expect((await copied(() => page.click("#copy-name"), [name])) !== "", "copied: nothing");
  await page.waitForFunction((text) => document.querySelector("#told").textContent === `copied: ${text}`, name, { timeout: 120_000 })
    .catch(async () => expect(false, `it says: ${await told(page)}`));
  const under = page.locator("#frames > g:not(.gone):not(.thin)").first();
  const label = await labelOf(under);
  expect((await copied(() => under.click({ button: "right" }), [label])) === label, `a right click does not copy ${label}`);
  await under.dispatchEvent("pointerdown", { pointerType: "touch" });
  await under.dispatchEvent("contextmenu", {});
  expect((await told(page)).startsWith(`${label} — `), `a long press says ${await told(page)}`);
  await page.locator("#frames g[tabindex='0']").focus();
  await page.keyboard.press("ArrowDown");
  const current = await labelOf(page.locator("#frames g:focus"));
  expect((await copied(() => under.dispatchEvent("contextmenu", {}), [current])) === current && current !== label, `a key for menus does not copy ${current}`);
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  expect(await page.locator("#info .info").isVisible(), "? shows no help");
  await page.keyboard.press("Escape");
  expect(!(await page.locator("#info .info").isVisible()), "Esc does not close the help");
}

async function choose(page) {
  const values = {};
  for (const show of ["cpu", "waits", "both"]) {
    await page.click(`#show-${show}`);
    await page.locator("#frames g[class]").first().hover();
    values[show] = (await told(page)).split(" — ")[1].split(" · ")[0];
  }
  expect(new Set(Object.values(values)).size === 3, `the choice of time changes nothing: ${JSON.stringify(values)}`);
  await page.click("#show-cpu");
  await page.keyboard.press("Escape");
  expect((await hash(page)) === "", `Esc does not undo the choice of time: ${await hash(page)}`);
  const top = async () => (await page.locator("#frames g[class]").first().boundingBox()).y;
  const icicle = await top();
  await page.keyboard.press("f");
  expect((await top()) > icicle + 100, "f does not turn the picture");
  await page.keyboard.press("f");
  if (await page.locator("#idle").count()) {
    const whole = async () => page.evaluate(() => document.querySelectorAll("#frames g:not(.gone)").length);
    const busy = await whole();
    await page.keyboard.press("i");
    expect((await whole()) > busy, "i does not show idle time");
    await page.keyboard.press("i");
  }
}

// Clicks on each frame that is drawn, wide enough and waits: it is in view then, and so are all its waits.
async function deep(page) {
  const targets = await page.evaluate(() => {
    const { wait } = JSON.parse(document.getElementById("frame-data").textContent);
    const isTarget = (group, i) => wait[i] > 0 && !/gone|fold|thin|^(wait|runqueue)/.test(group.getAttribute("class"));
    return [...document.querySelectorAll("#frames > g")].flatMap((group, i) => (isTarget(group, i) ? [i] : []));
  });
  expect(targets.length > 8, `only ${targets.length} frames are drawn`);
  for (const target of targets) {
    const group = page.locator("#frames > g").nth(target);
    await group.click();
    const [label, box] = [await labelOf(group), await group.boundingBox()];
    expect(box.y >= 0 && box.y < 260 && box.width > page.viewportSize().width - 80, `${label} is at ${JSON.stringify(box)}`);
    await waitsInView(page, label);
    await page.keyboard.press("Escape");
  }
  console.log(`# ${targets.length} frames were clicked, and were in view with their waits`);
  await page.locator("#frames g.fold").first().click();
  const unfolded = await page.locator("#frames g:not(.gone)").count();
  expect(unfolded > 45, `a click on folded frames shows ${unfolded}`);
  await page.evaluate(() => window.scrollTo(0, 300));
  await page.mouse.click(page.viewportSize().width / 3, 400);
  expect(await page.evaluate(() => window.scrollY === 0), "a zoom does not scroll");
  await waitsInView(page, "a frame that was folded");
}

async function waitsInView(page, label) {
  const [all, inView] = await page.evaluate(() => {
    const below = document.querySelector("#bottom").getBoundingClientRect().top;
    const above = document.querySelector("#top").getBoundingClientRect().bottom;
    const boxes = [...document.querySelectorAll("#frames > g:not(.gone)")].filter((it) => /^(wait|runqueue)/.test(it.classList[0])).map((it) => it.querySelector("rect").getBoundingClientRect());
    return [boxes.length, boxes.filter((box) => box.top >= above - 1 && box.bottom <= below + 1).length];
  });
  expect(all > 0 && inView === all, `of ${label} ${inView} of ${all} waits are in view`);
}

async function threads(page) {
  const drawn = (hottest) => page.evaluate((hottest) => [...document.querySelectorAll("#frames > g:not(.gone)")].map((it) => [it.querySelector("title").textContent.split("\n")[0], it.querySelector("rect").getBoundingClientRect().width]).filter(([label, width]) => label.startsWith(hottest) && width > 0), hottest);
  // With waits the hottest leaf of each is its wait.
  for (const [show, hottest] of [["both", "waiting: lock"], ["cpu", "hottest_"]]) {
    await page.click(`#show-${show}`);
    const found = await drawn(hottest);
    console.log(`# ${show}: ${found.length} of ${wanted} hottest leaves are drawn, the narrowest ${Math.min(...found.map(([, px]) => px)).toFixed(2)} px wide`);
    expect(found.length === Number(wanted), `${show}: ${found.length} of ${wanted} hottest leaves are drawn`);
  }
  const last = page.locator("#frames > g:not(.gone)", { hasText: "hottest_64 " });
  await last.click();
  expect((await crumb(page)).startsWith("hottest_64 "), `a click leads to ${await crumb(page)}`);
}

// [text, contrast] of all texts that are seen; of a frame against what is behind its marks.
const contrasts = () => {
  const parsed = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parsed(color).map((it) => (it / 255 <= 0.04045 ? it / 255 / 12.92 : ((it / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => (Math.max(light(one), light(other)) + 0.05) / (Math.min(light(one), light(other)) + 0.05);
  const found = [];
  for (const text of document.querySelectorAll("#frames g:not(.gone) text")) {
    const style = getComputedStyle(text);
    const fill = getComputedStyle(text.parentNode.querySelector("rect")).fill;
    const pattern = /url\("?#([^")]+)"?\)/.exec(fill)?.[1];
    const back = pattern ? getComputedStyle(document.getElementById(pattern).querySelector("rect")).fill : fill;
    const ground = text.parentNode.querySelector(".ground");
    const [inner, outer] = [text, ground ?? text].map((it) => it.getBoundingClientRect());
    const isOver = ground && getComputedStyle(ground).fill === back && outer.left <= inner.left && outer.right >= inner.right && outer.bottom - outer.top >= 9;
    if (pattern && !isOver) found.push([`marks behind ${text.textContent}`, 0]);
    found.push([text.textContent, ratio(style.fill, back) * Number(style.fillOpacity) * Number(style.opacity)]);
    for (const span of text.querySelectorAll("tspan")) found.push([span.textContent, ratio(getComputedStyle(span).fill, back) * Number(getComputedStyle(span).fillOpacity)]);
  }
  for (const element of document.querySelectorAll("foreignObject *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    let behind = element;
    while (behind && parsed(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    found.push([element.textContent, ratio(getComputedStyle(element).color, getComputedStyle(behind ?? document.documentElement).backgroundColor)]);
  }
  return found;
};

// Texts that lie over others, or are cut without saying so.
const badTexts = () => {
  const bad = [];
  const width = document.documentElement.clientWidth;
  const page = [document.documentElement.scrollWidth, Number(document.documentElement.getAttribute("width"))];
  if (Math.max(...page) > width) bad.push(`the page is ${page} px wide`);
  const brush = document.createElementNS("http://www.w3.org/1999/xhtml", "canvas").getContext("2d");
  for (const text of document.querySelectorAll("#frames g:not(.gone) text")) {
    const [inner, outer] = [text.getBoundingClientRect(), text.parentNode.querySelector("rect").getBoundingClientRect()];
    const label = text.parentNode.querySelector("title").textContent.split("\n")[0];
    if (inner.right > outer.right + 0.5 || inner.top < outer.top - 2) bad.push(`${text.textContent} is wider than its frame`);
    const style = getComputedStyle(text);
    if (parseFloat(style.fontSize) < 11) bad.push(`${text.textContent} is small`);
    brush.font = `${style.fontSize} ${style.fontFamily}`;
    const below = Number(text.getAttribute("y")) + brush.measureText(text.textContent).actualBoundingBoxDescent;
    const rect = text.parentNode.querySelector("rect");
    const end = Number(rect.getAttribute("y")) + Number(rect.getAttribute("height"));
    if (below > end + 0.5) bad.push(`${text.textContent} ends ${(below - end).toFixed(1)} px below its frame`);
    const isWhole = text.textContent === label || /^(… |[▲▼])|^[\w #-]+ [\d.]+ (s|ms|µs)$/.test(text.textContent);
    if (!isWhole && !text.textContent.endsWith("…")) bad.push(`${text.textContent} is cut`);
  }
  const texts = [...document.querySelectorAll("foreignObject *")].filter((it) => it.getClientRects().length && [...it.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  for (const text of texts) {
    const style = getComputedStyle(text);
    const scrolls = text.closest(".crumbs");
    const isCut = text.scrollWidth > text.clientWidth + 1 && text.clientWidth > 0;
    if (isCut && style.textOverflow !== "ellipsis" && !scrolls) bad.push(`${text.textContent} is cut`);
    if (parseFloat(style.fontSize) < 11) bad.push(`${text.textContent} is small`);
    const box = text.getBoundingClientRect();
    if (box.right > width + 1 && !scrolls) bad.push(`${text.textContent} is beyond the edge`);
    for (const other of texts) {
      if (other === text || other.contains(text) || text.contains(other) || other.closest(".crumbs") || scrolls) continue;
      const there = other.getBoundingClientRect();
      if (box.left < there.right - 1 && there.left < box.right - 1 && box.top < there.bottom - 1 && there.top < box.bottom - 1) bad.push(`${text.textContent} lies over ${other.textContent}`);
    }
  }
  return bad;
};

async function look(browser) {
  for (const colorScheme of ["light", "dark"]) {
    for (const viewport of [{ width: 1280, height: 800 }, { width: 360, height: 740 }]) {
      const page = await open(browser, { colorScheme, viewport, ...(viewport.width < 400 ? { isMobile: true, hasTouch: true } : {}) });
      const where = `${colorScheme}, ${viewport.width} px`;
      const check = async (state) => {
        const texts = await page.evaluate(contrasts);
        const [least, worst] = texts.reduce((least, [text, ratio]) => (ratio < least[0] ? [ratio, text] : least), [21, ""]);
        console.log(`# ${where}, ${state}: ${texts.length} texts, the least contrast is ${least.toFixed(2)} (${worst.trim()})`);
        for (const [text, ratio] of texts) expect(ratio >= 4.5, `${where}, ${state}: ${text} has a contrast of ${ratio.toFixed(2)}`);
        for (const bad of await page.evaluate(badTexts)) problems.push(`${where}, ${state}: ${bad}`);
      };
      await check("first");
      await page.fill("#search", "a");
      await check("search");
      await page.fill("#search", "");
      const frame = page.locator("#frames > g:not(.gone):not(.thin)").nth(4);
      await (viewport.width < 400 ? frame.tap() : frame.click());
      expect((await crumb(page)) !== "all", "a click, or a touch, does not zoom");
      await check("zoom");
      await page.context().close();
    }
  }
  await print(browser);
}

async function print(browser) {
  const page = await open(browser, { colorScheme: "dark" });
  await page.emulateMedia({ media: "print" });
  const [paper, tools] = await page.evaluate(() => [getComputedStyle(document.getElementById("page")).fill, document.querySelector(".tools").getClientRects().length]);
  expect(paper === "rgb(255, 255, 255)" && !tools, `paper is ${paper}, ${tools} controls are printed`);
  expect((await page.pdf({ format: "A4", landscape: true, printBackground: true })).length > 10_000, "nothing is printed");
  await page.context().close();
}

const browser = await chromium.launch({ executablePath, args: FLAGS, timeout: 120_000 });
try {
  for (let i = 0; i < cases.length; i += 3) {
    const kind = cases[i];
    address = pathToFileURL(cases[i + 1]).href;
    wanted = cases[i + 2];
    if (kind === "look") await look(browser);
    else {
      const page = await open(browser, kind === "deep-phone" ? { viewport: { width: 360, height: 740 } } : {});
      const steps = { opens: [], use: [searchIt, zoomAndGoBack, useTheKeyboard, choose], deep: [deep], "deep-phone": [deep], threads: [threads] }[kind];
      if (problems.length === 0) for (const step of steps) await step(page);
    }
  }
} catch (error) {
  problems.push(`${error.stack ?? error}`.slice(0, 1200));
} finally {
  await browser.close();
}
console.log(problems.join("\n") || "ok");
process.exit(problems.length ? 1 : 0);
