// Joins the parts: keys and buttons, tabs, and the watch over the server.
import { getJson, setKey } from "./api.js";
import { answering, ask, forgetAll, resizePrompt, setErrorHandler, setModel, stop } from "./chat.js";
import { byId, button, element } from "./dom.js";
import { showLive, showPlan } from "./panel.js";
import { restoreParameters } from "./settings.js";
import { hideCard } from "./tokens.js";

const prompt = byId("prompt");
const side = byId("side");
const sideToggle = byId("side-toggle");
const wide = matchMedia("(min-width: 62rem)");  // where the panel has its own column, as in style.css

const suggestions = {
  demo: ["Tell me a story about a brave little mouse", "Tell me a story about a fox and a lonely bear"],
  other: ["Explain mixture-of-experts models to a curious child", "Write a haiku about four-bit weights",
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
  setModel(model.id);
  byId("model").textContent = model.id;
  document.title = `${model.id} · nibble`;
  const offered = suggestions[model.id] ?? suggestions.other;
  byId("suggestions").replaceChildren(...offered.map((text) => element("li", {}, button(text, () => ask(text)))));
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
    if (!known) showModel((await getJson("/v1/models")).data[0]);
    showLive(await getJson("/live"));
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
  if (!wide.matches) prompt.blur();  // a phone's keyboard would cover the answer
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (answering()) stop();
  else submit();
  if (wide.matches) prompt.focus();
});
prompt.addEventListener("input", resizePrompt);
prompt.addEventListener("keydown", (event) => {
  // Enter may also end a word of an input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!answering()) submit();
});
byId("new").addEventListener("click", forgetAll);

// --- The panel ---

const tabs = [...side.querySelectorAll("[role=tab]")];

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
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    select(next);
    next.focus();
  });
}

// On a narrow window the panel lies over the conversation, which then is out of reach.
function openSide(open) {
  document.body.classList.toggle("side-open", open);
  document.body.classList.toggle("side-closed", !open);
  sideToggle.setAttribute("aria-expanded", String(open));
  document.querySelector("main").inert = open && !wide.matches;
}

sideToggle.addEventListener("click", () => {
  const open = sideToggle.getAttribute("aria-expanded") !== "true";
  openSide(open);
  if (open && !wide.matches) tabs.find((tab) => tab.tabIndex === 0).focus();
});
byId("side-close").addEventListener("click", () => {
  openSide(false);
  sideToggle.focus();
});
wide.addEventListener("change", () => openSide(wide.matches));

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  hideCard();
  if (answering()) stop();
  else if (!wide.matches && document.body.classList.contains("side-open")) byId("side-close").click();
});
byId("scroll").addEventListener("scroll", hideCard, { passive: true });

openSide(wide.matches);
restoreParameters();
if (wide.matches) prompt.focus({ preventScroll: true });
watch();
