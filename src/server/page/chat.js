// The conversation: in this tab's memory, and on the page.
import { Answer } from "./answer.js";
import { streamChat } from "./api.js";
import { announce, button, byId, element } from "./dom.js";
import { requestParameters, systemMessage } from "./settings.js";

const turns = byId("turns");
const scroll = byId("scroll");
const prompt = byId("prompt");
const send = byId("send");

let exchanges = [];  // {question, questionRoot, answer}
let running = null;  // the AbortController of the answer that streams
let model = "";
let onError = () => {};

export function setModel(name) {
  model = name;
}

// Told of each error once it is shown.
export function setErrorHandler(handler) {
  onError = handler;
}

export const answering = () => running !== null;

// The end of the text stays in sight unless the reader has scrolled away from it.
function keepAtEnd(change) {
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function showState() {
  send.firstElementChild.textContent = running ? "Stop" : "Send";
  send.classList.toggle("stop", running !== null);
  document.body.classList.toggle("talking", exchanges.length > 0);
  byId("new").hidden = exchanges.length === 0;
}

export function resizePrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, window.innerHeight * 0.4)}px`;
}

function conversation(until) {
  const system = systemMessage();
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { question, answer } of exchanges.slice(0, until)) {
    messages.push({ role: "user", content: question });
    if (answer.text) messages.push({ role: "assistant", content: answer.text });
  }
  return messages;
}

function questionView(text, edit) {
  const root = element("li", { class: "turn question" }, element("h3", { class: "unseen" }, "You"), element("p", {}, text));
  root.append(button("Edit", edit));
  return root;
}

// Takes the exchanges from this one on off the page.
function forgetFrom(index) {
  for (const { questionRoot, answer } of exchanges.splice(index)) {
    questionRoot.remove();
    answer.root.remove();
  }
}

async function answerLast() {
  const exchange = exchanges.at(-1);
  const { seed, ...parameters } = requestParameters();
  const control = (running = new AbortController());
  const answer = new Answer(seed, () => regenerate(exchange), keepAtEnd);
  exchange.answer?.root.remove();
  exchange.answer = answer;
  exchange.questionRoot.after(answer.root);
  scroll.scrollTop = scroll.scrollHeight;
  showState();
  announce("Answering");
  let error = "";
  try {
    const messages = [...conversation(exchanges.length - 1), { role: "user", content: exchange.question }];
    await streamChat({ model, messages, seed, ...parameters }, control.signal, (chunk) => {
      if (!control.signal.aborted) answer.take(chunk);
    });
  } catch (reason) {
    if (reason.name === "AbortError") answer.finish = "stopped";
    else {
      error = reason.message;
      onError(reason);
    }
  }
  if (running === control) running = null;
  keepAtEnd(() => answer.end(error));
  showState();
  announce(error || `${answer.finish === "stopped" ? "Stopped" : "Answered"}, ${answer.tokenCount()} tokens`);
}

export function ask(text) {
  if (running || text.trim() === "") return false;
  const exchange = { question: text, answer: null };
  exchange.questionRoot = questionView(text, () => edit(exchange));
  exchanges.push(exchange);
  turns.append(exchange.questionRoot);
  answerLast();
  return true;
}

export function stop() {
  running?.abort();
}

function regenerate(exchange) {
  if (running) return;
  forgetFrom(exchanges.indexOf(exchange) + 1);
  answerLast();
  prompt.focus();
}

function edit(exchange) {
  stop();
  forgetFrom(exchanges.indexOf(exchange));
  showState();
  prompt.value = exchange.question;
  resizePrompt();
  prompt.focus();
}

export function forgetAll() {
  stop();
  forgetFrom(0);
  showState();
  prompt.focus();
}
