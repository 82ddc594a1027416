// Joins the parts: keys and buttons, the list and the panel, and the watch over the server.
import { getJson, setKey } from "./api.js";
import {
  answering, ask, cancelEdit, editLast, opened, resizePrompt, restore, setErrorHandler, setModel, startNew, stop,
} from "./chat.js";
import { byId, button, element } from "./dom.js";
import { listenToKeys, showShortcuts } from "./keys.js";
import * as library from "./library.js";
import { draw, focusList, onChosen, step } from "./list.js";
import { closeMenu } from "./menu.js";
import { showLive, showPlan } from "./panel.js";
import { keepDefaults } from "./store.js";
import { hideCard } from "./tokens.js";

const prompt = byId("prompt");
// Where the list and the panel have their own columns, as in style.css.
const listFits = matchMedia("(min-width: 52rem)");
const panelFits = matchMedia("(min-width: 75rem)");

// What is offered to begin with. The demo model tells stories. It confuses characters less when one of them has a name
// and the temperature is low.
const demo = {
  suggestions: ["Tell me a story about a girl named Lily who helps a lost puppy", "Tell me a story about a girl named Lucy and a little bird"],
  temperature: 0.4,
};
const other = {
  suggestions: ["Explain mixture-of-experts models to a curious child", "Write a haiku about four-bit weights",
    "What is a KV cache, and why is it paged?"],
};

// --- The server ---

const patience = { first: 1000, most: 5000 };  // ms between looks while it does not answer
let wait = patience.first;
let known = false;  // the model's name is on the page
let timer = 0;

function showConnection(state, words) {
  const place = byId("connection");
  place.dataset.state = state;
  if (place.firstElementChild.textContent !== words) place.firstElementChild.textContent = words;
}

function showModel(model) {
  known = true;
  const start = model.id === "demo" ? demo : other;
  setModel(model.id, start.temperature);
  byId("model").textContent = model.id;
  if (opened().exchanges.length === 0) document.title = `${model.id} · nibble`;
  byId("suggestions").replaceChildren(...start.suggestions.map((text) => element("li", {}, button(text, () => ask(text)))));
}

function showTrouble(error) {
  if (error.status === 401) {
    showConnection("waiting", "a key is needed");
    if (!byId("key-dialog").open) byId("key-dialog").showModal();
    return;
  }
  if (error.status === 503) showConnection("waiting", error.message.replace(/\.$/, "").toLowerCase());
  else showConnection("lost", error.status === 0 ? "no answer from the server; trying again" : error.message);
  wait = Math.min(wait * 1.5, patience.most);
}

// Looks at the server once a second while the page is seen; it may go and come back.
async function watch() {
  clearTimeout(timer);
  if (document.hidden || byId("key-dialog").open) return;
  try {
    if (!known) showModel((await getJson("v1/models")).data[0]);
    showLive(await getJson("live"));
    showConnection("ready", "ready");
    wait = patience.first;
  } catch (error) {
    known = known && error.status !== 0;  // another server may come back
    showTrouble(error);
  }
  clearTimeout(timer);
  timer = setTimeout(watch, wait);
}

byId("key-form").addEventListener("submit", () => {
  setKey(byId("key").value);
  byId("key").value = "";
  setTimeout(watch);  // once the dialog has closed
});
byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
document.addEventListener("visibilitychange", watch);
setErrorHandler((error) => {
  if (error.status === 401) showTrouble(error);
});

// --- The composer ---

function submit() {
  if (!ask(prompt.value)) return;
  prompt.value = "";
  resizePrompt();
  if (!listFits.matches) prompt.blur();  // a phone's keyboard would cover the answer
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (answering()) stop();
  else submit();
  if (listFits.matches) prompt.focus();
});
prompt.addEventListener("input", resizePrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key === "ArrowUp" && prompt.value === "" && !event.altKey) {
    event.preventDefault();
    editLast();
  }
  // Enter may also end a word of an input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!answering()) submit();
});
byId("editing-cancel").addEventListener("click", cancelEdit);
byId("keys-open").addEventListener("click", showShortcuts);
byId("new").addEventListener("click", () => {
  startNew();
  draw();
});

// --- The list and the panel ---

// Beside the conversation where there is room; else it lies over the conversation, which then is out of reach.
class Drawer {
  constructor(name, fits, focus) {
    this.name = name;
    this.fits = fits;
    this.focus = focus;
    this.toggle = byId(`${name}-toggle`);
    this.toggle.addEventListener("click", () => this.press());
    byId(`${name}-close`).addEventListener("click", () => this.leave());
    fits.addEventListener("change", () => this.set(fits.matches));
    this.set(fits.matches);
  }
  set(open) {
    this.open = open;
    document.body.classList.toggle(`${this.name}-open`, open);
    this.toggle.setAttribute("aria-expanded", String(open));
    document.querySelector("main").inert = drawers.some((drawer) => drawer.covers) || this.covers;
  }
  get covers() {
    return this.open && !this.fits.matches;
  }
  press() {
    const open = !this.open;
    for (const other of drawers) if (other !== this && other.covers) other.set(false);
    this.set(open);
    if (open) this.focus();
  }
  leave() {
    this.set(false);
    this.toggle.focus();
  }
}

const tabs = [...byId("side").querySelectorAll("[role=tab]")];

function select(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (tab.id === "tab-plan") showPlan();
}

for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = tabs[(i + by + tabs.length) % tabs.length];
    select(next);
    next.focus();
  });
}

const drawers = [];
drawers.push(new Drawer("list", listFits, focusList));
drawers.push(new Drawer("side", panelFits, () => tabs.find((tab) => tab.tabIndex === 0).focus()));
const [list, panel] = drawers;
onChosen(() => {
  if (!list.covers) return;
  list.set(false);
  prompt.focus();
});

// --- Notes, keys ---

byId("use-for-new").addEventListener("click", ({ target }) => {
  const { seed, ...parameters } = opened().parameters;
  target.textContent = keepDefaults(parameters) ? "New chats begin with these" : "This browser keeps nothing";
  setTimeout(() => (target.textContent = "Use for new chats"), 1500);
});

let dismissed = "";
library.onStoreTrouble((sentence) => {
  if (sentence === "") dismissed = "";
  byId("notice").hidden = sentence === "" || sentence === dismissed;
  if (byId("notice").firstElementChild.textContent !== sentence) byId("notice").firstElementChild.textContent = sentence;
});
byId("notice-close").addEventListener("click", () => {
  dismissed = byId("notice").firstElementChild.textContent;
  byId("notice").hidden = true;
  prompt.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]") || closeMenu(true)) return;
  hideCard();
  if (answering()) stop();
  else if (!cancelEdit()) drawers.find((drawer) => drawer.covers)?.leave();
});
listenToKeys({
  "/": () => {
    for (const drawer of drawers) if (drawer.covers) drawer.set(false);
    prompt.focus();
  },
  KeyN: () => {
    startNew();
    draw();
  },
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  KeyL: () => list.press(),
  KeyP: () => panel.press(),
});
byId("scroll").addEventListener("scroll", hideCard, { passive: true });

restore();
draw();
if (listFits.matches) prompt.focus({ preventScroll: true });
watch();
