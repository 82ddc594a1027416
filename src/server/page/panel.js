// The panel: what the server does now, and why it runs as it does.
import { getJson } from "./api.js";
import { byId, element, svg } from "./dom.js";

const history = 60;     // samples of the curve
const most_cells = 400;  // of the picture of the KV cache; with more pages than that a cell stands for several

const number = new Intl.NumberFormat("en");
let before = null;  // the last sample and its time
const rates = Array(history).fill(0);
let cells = [];

function drawRates() {
  const most = Math.max(...rates, 1);
  const x = (i) => (i / (history - 1)) * 240;
  const y = (rate) => 54 - (rate / most) * 50;
  const line = rates.map((rate, i) => `${x(i).toFixed(1)},${y(rate).toFixed(1)}`).join(" ");
  const root = byId("rates");
  if (!root.firstChild) root.append(svg("polygon"), svg("polyline"));
  root.firstChild.setAttribute("points", `0,56 ${line} 240,56`);
  root.lastChild.setAttribute("points", line);
}

function makeCells(count) {
  const columns = 25;
  const rows = Math.ceil(count / columns);
  const root = byId("pages");
  root.setAttribute("viewBox", `0 0 ${columns * 10} ${rows * 10}`);
  cells = Array.from({ length: count }, (_, i) =>
    svg("rect", { x: (i % columns) * 10 + 1, y: Math.floor(i / columns) * 10 + 1, width: 8, height: 8, rx: 2 }));
  root.replaceChildren(...cells);
}

// Pages have no order that a reader would know, so those in use come first, then those kept.
function drawPages({ pages, pages_used: used, pages_cached: cached = 0 }) {
  const count = Math.min(pages, most_cells);
  if (cells.length !== count) makeCells(count);
  const share = count / pages;
  const end = Math.ceil(used * share);
  const kept = Math.min(count, end + Math.ceil(cached * share));
  for (const [i, cell] of cells.entries()) {
    const state = i < end ? "used" : i < kept ? "cached" : "free";
    if (cell.getAttribute("class") !== state) cell.setAttribute("class", state);
  }
  const text = `${number.format(used)} of ${number.format(pages)} pages in use` + (cached ? `, ${number.format(cached)} kept` : "");
  byId("pages-shown").textContent = text;
  byId("pages").setAttribute("aria-label", text);
}

// Shows a sample and the rate since the one before.
export function showLive(sample) {
  const now = performance.now();
  if (before && sample.generated_tokens >= before.sample.generated_tokens) {
    const rate = ((sample.generated_tokens - before.sample.generated_tokens) * 1000) / (now - before.now);
    rates.push(rate);
    rates.shift();
    byId("rate").textContent = rate === 0 || rate >= 100 ? number.format(Math.round(rate)) : rate.toFixed(1);
  }
  drawRates();
  before = { sample, now };
  byId("running").textContent = number.format(sample.running);
  byId("queued").textContent = number.format(sample.queued);
  byId("generated").textContent = number.format(sample.generated_tokens);
  byId("prompted").textContent = number.format(sample.prompt_tokens);
  if (sample.prefix_queries > 0) {
    const share = Math.round((sample.prefix_hits / sample.prefix_queries) * 100);
    byId("hits").textContent = `${number.format(sample.prefix_hits)} tokens, ${share} %`;
  }
  if (sample.pages > 0) drawPages(sample);
}

function choiceRow({ field, value, from = "", why = "", rejected = [] }) {
  const parts = [element("dt", {}, field.replaceAll("_", " ")),
    element("dd", {}, element("strong", {}, String(value)), from && from !== "default" ? element("small", {}, from) : "",
      element("p", {}, why))];
  if (rejected.length) {
    const rows = rejected.map((other) => element("tr", {}, element("th", { scope: "row" }, String(other.value)), element("td", {}, other.why)));
    parts[1].append(element("details", {}, element("summary", {}, `${rejected.length} refused`), element("table", {}, ...rows)));
  }
  return element("div", {}, ...parts);
}

export async function showPlan() {
  const place = byId("choices");
  try {
    const plan = await getJson("plan");
    const choices = Array.isArray(plan) ? plan : plan.choices ?? [];
    place.replaceChildren(element("dl", {}, ...choices.map(choiceRow)));
  } catch (error) {
    place.replaceChildren(element("p", { class: "note" }, error.status === 404 ? "This server does not tell its plan." : error.message));
  }
}
