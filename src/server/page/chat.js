// The open conversation on the page, and the answers that stream. An answer goes on while another conversation
// is open: its nodes grow outside of the page.
import { Answer } from "./answer.js";
import { streamChat } from "./api.js";
import { newConversation, newRecord, requestMessages, titleOf } from "./conversation.js";
import { announce, button, byId, copyWith, element } from "./dom.js";
import * as library from "./library.js";
import { onParameters, requestParameters, setDefaultTemperature, showParameters, shownParameters } from "./settings.js";
import { defaults, keepTab, tab } from "./store.js";
import { hideCard } from "./tokens.js";

const turns = byId("turns");
const scroll = byId("scroll");
const prompt = byId("prompt");
const send = byId("send");
const keepEvery = 2000;  // ms, while an answer streams

let open = newConversation();
let editing = null;  // the exchange that the next question replaces, with all after it
let model = "";
let onError = () => {};

// `temperature`: the model's own default, if it has one; a conversation that nobody has touched begins with it.
export function setModel(name, temperature) {
  model = name;
  if (temperature === undefined) return;
  setDefaultTemperature(temperature);
  if (open.exchanges.length > 0 || open.touched) return;
  open.parameters = defaults();
  showParameters(open.parameters);
  open.parameters = shownParameters();
}

// Told of each error once it is shown.
export function setErrorHandler(handler) {
  onError = handler;
}

export const opened = () => open;
export const answering = () => open.control !== null;

// The end of the text stays in sight unless the reader has scrolled away from it.
function keepAtEnd(change) {
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

// It stays there when the window or the composer changes its height, too.
let wasAtEnd = true;
scroll.addEventListener("scroll", () => (wasAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48), { passive: true });
new ResizeObserver(() => {
  if (wasAtEnd) scroll.scrollTop = scroll.scrollHeight;
}).observe(scroll);

const around = (conversation) => (change) => (conversation === open ? keepAtEnd(change) : change());

function showState() {
  const running = answering();
  send.firstElementChild.textContent = running ? "Stop" : "Send";
  send.classList.toggle("stop", running);
  const talking = open.exchanges.length > 0;
  document.body.classList.toggle("talking", talking);
  byId("new").hidden = byId("chat-menu").hidden = !talking;
  const name = talking ? titleOf(open) : model;
  document.title = name ? `${name} · nibble` : "nibble";
  byId("editing").hidden = editing === null;
  const from = editing ? open.exchanges.indexOf(editing) : Infinity;
  for (const [i, { view }] of open.exchanges.entries()) {
    view.question.classList.toggle("replaced", i >= from);
    view.answer?.root.classList.toggle("replaced", i >= from);
  }
}

export function resizePrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, window.innerHeight * 0.4)}px`;
}

// --- Nodes of an exchange ---

function questionView(conversation, exchange) {
  return element("li", { class: "turn question" }, element("h3", { class: "unseen" }, "You"), element("p", {}, exchange.question),
    button("Edit", () => edit(conversation, exchange)));
}

function makeView(conversation, exchange) {
  exchange.view ??= { question: questionView(conversation, exchange), answer: null };
  if (exchange.record && !exchange.view.answer) exchange.view.answer = Answer.kept(exchange.record, () => regenerate(conversation, exchange));
  return [exchange.view.question, ...(exchange.view.answer ? [exchange.view.answer.root] : [])];
}

// Takes the exchanges from this one on out of the conversation.
function forgetFrom(conversation, exchange) {
  const index = conversation.exchanges.indexOf(exchange);
  if (index === -1) return;
  for (const { view } of conversation.exchanges.splice(index)) {
    view?.question.remove();
    view?.answer?.root.remove();
  }
}

// --- Which conversation is open ---

function keepForReload() {
  open.draft = prompt.value;
  const { id, draft, touched, parameters } = open;
  keepTab(library.find(id) ? { open: id, draft } : touched ? { draft, parameters } : { draft });
}

export function show(conversation) {
  keepForReload();
  hideCard();
  open = conversation;
  editing = null;
  turns.replaceChildren(...open.exchanges.flatMap((exchange) => makeView(open, exchange)));
  showParameters(open.parameters);
  open.parameters = shownParameters();
  prompt.value = open.draft;
  resizePrompt();
  scroll.scrollTop = scroll.scrollHeight;
  showState();
  keepForReload();
}

export function startNew() {
  if (open.exchanges.length > 0) show(newConversation(defaults()));
  prompt.focus();
}

// What a reload left behind, else a new conversation.
export function restore() {
  const { open: id, draft, parameters } = tab();
  const kept = typeof id === "string" ? library.find(id) : undefined;
  const typed = parameters !== null && typeof parameters === "object";
  const conversation = kept ?? newConversation(typed ? parameters : defaults());
  conversation.touched = typed;
  if (typeof draft === "string") conversation.draft = prompt.value = draft;
  open = conversation;
  show(conversation);
}

onParameters((parameters) => {
  open.parameters = parameters;
  open.touched = true;
  if (library.find(open.id)) library.keep(open);
  else keepForReload();
});

library.onChange(({ gone, replaced }) => {
  if (gone) gone.control?.abort();
  if (gone === open) show(newConversation(defaults()));
  else if (replaced?.id === open.id) {
    replaced.draft = prompt.value;
    show(replaced);
  }
  else showState();
});

addEventListener("pagehide", () => {
  keepForReload();
  for (const conversation of library.sorted()) if (conversation.control) library.keep(conversation);
});

// --- Asking ---

async function answerLast(conversation) {
  const exchange = conversation.exchanges.at(-1);
  const { seed, ...parameters } = requestParameters(conversation.parameters);
  const control = (conversation.control = new AbortController());
  const record = (exchange.record = newRecord());
  record.details.seed = seed;
  conversation.model = model;
  conversation.updated = Date.now();
  exchange.view.answer?.root.remove();
  const answer = (exchange.view.answer = new Answer(record, () => regenerate(conversation, exchange), around(conversation)));
  if (conversation === open) exchange.view.question.after(answer.root);
  scroll.scrollTop = scroll.scrollHeight;
  library.keep(conversation);
  announce("Answering");
  let kept = performance.now();
  const ending = { stopped: false, error: "" };
  try {
    const messages = requestMessages(conversation, conversation.exchanges.length - 1);
    await streamChat({ model, messages, seed, ...parameters }, control.signal, (chunk) => {
      if (control.signal.aborted) return;
      answer.take(chunk);
      if (performance.now() - kept < keepEvery) return;
      library.keep(conversation);
      kept = performance.now();
    });
  } catch (reason) {
    if (reason.name === "AbortError") ending.stopped = true;
    else {
      ending.error = reason.message;
      onError(reason);
    }
  }
  around(conversation)(() => answer.end(ending));
  if (conversation.control !== control) return;  // it was edited meanwhile, or is gone
  conversation.control = null;
  conversation.updated = Date.now();
  if (library.find(conversation.id) === conversation) library.keep(conversation);
  showState();
  announce(ending.error || `${ending.stopped ? "Stopped" : "Answered"}, ${answer.tokenCount()} tokens`);
}

export function ask(text) {
  if (answering() || text.trim() === "") return false;
  if (editing) forgetFrom(open, editing);
  editing = null;
  const exchange = { question: text, record: null, view: null };
  open.exchanges.push(exchange);
  turns.append(...makeView(open, exchange));
  answerLast(open);
  return true;
}

export function stop(conversation = open) {
  conversation.control?.abort();
}

function regenerate(conversation, exchange) {
  if (conversation.control) return;
  const next = conversation.exchanges[conversation.exchanges.indexOf(exchange) + 1];
  if (next) forgetFrom(conversation, next);
  answerLast(conversation);
  prompt.focus();
}

function edit(conversation, exchange) {
  stop(conversation);
  editing = exchange;
  prompt.value = exchange.question;
  resizePrompt();
  showState();
  prompt.focus();
}

export function editLast() {
  const last = open.exchanges.at(-1);
  if (last && !answering()) edit(open, last);
}

// Whether there was something to cancel.
export function cancelEdit() {
  if (!editing) return false;
  editing = null;
  prompt.value = "";
  resizePrompt();
  showState();
  prompt.focus();
  return true;
}

turns.addEventListener("click", ({ target }) => {
  if (!target.classList.contains("copy-code")) return;
  copyWith(target, target.closest("figure").querySelector("code").textContent);
});
