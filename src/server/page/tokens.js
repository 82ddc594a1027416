// The token view: an answer as the model made it, a box a token, coloured by its probability; a card tells
// what else it might have been.
import { byId, element } from "./dom.js";

// The least probability of each shade; below the last one a token was a surprise.
const shades = [0.9, 0.6, 0.3, 0.1, 0.02];

const shadeOf = (probability) => {
  const shade = shades.findIndex((least) => probability >= least);
  return shade === -1 ? shades.length : shade;
};

function percent(logprob) {
  const probability = Math.exp(logprob) * 100;
  if (probability >= 99.95) return "100 %";
  if (probability >= 1) return `${probability.toFixed(1)} %`;
  return probability >= 0.001 ? `${probability.toPrecision(2)} %` : "< 0.001 %";
}

// A token's bytes need not be whole characters; those that are not are shown as numbers.
function spell(token) {
  let text = token.token;
  if (token.bytes?.length) {
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(token.bytes));
    } catch {
      return token.bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    }
  }
  return text;
}

const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") || "(nothing)";

function row(token, chosen) {
  const meter = element("meter", { min: "0", max: "1", value: String(Math.exp(token.logprob)), "aria-hidden": "true" });
  return element("li", chosen ? { class: "chosen" } : {}, element("span", { class: "spelled" }, visible(spell(token))), meter,
    element("span", { class: "share" }, percent(token.logprob)));
}

function fillCard(card, token) {
  const others = token.top_logprobs ?? [];
  const isChosen = (other) => other.token === token.token && other.logprob === token.logprob;
  const rows = others.map((other) => row(other, isChosen(other)));
  if (!others.some(isChosen)) rows.push(row(token, true));
  card.replaceChildren(element("ol", {}, ...rows));
}

// Beside the token and inside the window.
function placeCard(card, box) {
  card.hidden = false;
  const room = 8;
  const at = box.getBoundingClientRect();
  const size = card.getBoundingClientRect();
  const left = Math.min(Math.max(room, at.left), document.documentElement.clientWidth - size.width - room);
  const above = at.top - size.height - room;
  card.style.left = `${Math.max(room, left)}px`;
  card.style.top = `${above >= room ? above : at.bottom + room}px`;
}

export function hideCard() {
  byId("card").hidden = true;
}

function show(token, box) {
  const card = byId("card");
  fillCard(card, token);
  placeCard(card, box);
}

// One tab stop for the whole view; arrow keys go from token to token.
function moveBy(view, event) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const boxes = [...view.children];
  const at = boxes.indexOf(document.activeElement);
  if (event.key === "Escape") return hideCard();
  let next = at + (steps[event.key] ?? 0);
  if (event.key === "Home") next = 0;
  if (event.key === "End") next = boxes.length - 1;
  if (next === at || at === -1) return;
  event.preventDefault();
  const target = boxes[Math.min(Math.max(next, 0), boxes.length - 1)];
  boxes[at].tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function legend(tokens) {
  const mean = tokens.reduce((sum, token) => sum + token.logprob, 0) / tokens.length;
  const keys = ["≥ 90 %", "≥ 60 %", "≥ 30 %", "≥ 10 %", "≥ 2 %", "less"].map((label, shade) =>
    element("span", { class: `key shade${shade}` }, label));
  return element("p", { class: "legend" }, ...keys,
    element("span", { class: "perplexity" }, `perplexity ${Math.exp(-mean).toFixed(2)}`));
}

export function tokenView(tokens) {
  const view = element("div", { class: "tokens", role: "listbox", "aria-label": "Tokens; arrow keys go from one to the next" });
  for (const token of tokens) {
    const text = spell(token);
    const box = element("span", {
      class: `token shade${shadeOf(Math.exp(token.logprob))}`, role: "option", tabindex: "-1",
      "aria-label": `${visible(text)}, ${percent(token.logprob)}`,
    }, text);
    box.addEventListener("pointerenter", () => show(token, box));
    box.addEventListener("pointerleave", hideCard);
    box.addEventListener("focus", () => show(token, box));
    box.addEventListener("blur", hideCard);
    view.append(box);
  }
  view.firstElementChild.tabIndex = 0;
  view.addEventListener("keydown", (event) => moveBy(view, event));
  return element("div", {}, legend(tokens), view);
}
