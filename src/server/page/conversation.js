// A conversation as data: what is kept, imported and exported, and the messages of its next request. No DOM,
// no storage. One exchange is a question and its answer's record:
//   {question, record: {content, reasoning, calls, details, tokens}, view}
// `tokens` and `view` belong to the open page and are never kept; nor are a conversation's `draft`, `touched` (somebody
// set its parameters) and `control` (of the answer that streams).

const longestText = 2_000_000;  // characters of one message
const mostMessages = 10_000;
const longestTitle = 200;

const numbers = ["tokens", "prompt_tokens", "cached_tokens", "reasoning_tokens", "rate", "first_ms", "reasoning_ms", "seed"];
const texts = ["finish_reason", "error"];

// crypto.randomUUID() is missing where the page came over plain HTTP from another machine.
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const newRecord = () => ({ content: "", reasoning: "", calls: [], details: {}, tokens: [] });

export function newConversation(parameters = {}) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, model: "", parameters, exchanges: [], draft: "", touched: false, control: null };
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const words = (conversation.exchanges[0]?.question ?? "").trim().replace(/\s+/g, " ");
  if (words.length <= 60) return words || "New chat";
  const cut = words.lastIndexOf(" ", 60);
  return `${words.slice(0, cut > 30 ? cut : 60)}…`;
}

// The messages before exchange `until`, then that one's question.
export function requestMessages(conversation, until) {
  const system = (conversation.parameters.system ?? "").trim();
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { question, record } of conversation.exchanges.slice(0, until)) {
    messages.push({ role: "user", content: question });
    if (record?.content) messages.push({ role: "assistant", content: record.content });
  }
  messages.push({ role: "user", content: conversation.exchanges[until].question });
  return messages;
}

// --- To JSON and back ---

export function toJson({ id, title, created, updated, model, parameters, exchanges }) {
  const messages = [];
  for (const { question, record } of exchanges) {
    messages.push({ role: "user", content: question });
    if (!record) continue;
    const answer = { role: "assistant", content: record.content };
    if (record.reasoning) answer.reasoning_content = record.reasoning;
    if (record.calls.length) answer.tool_calls = record.calls.map((call) => ({ type: "function", function: call }));
    if (Object.keys(record.details).length) answer.details = record.details;
    messages.push(answer);
  }
  return {
    id, title, created: new Date(created).toISOString(), updated: new Date(updated).toISOString(), model, parameters, messages,
  };
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isText = (value) => typeof value === "string" && value.length <= longestText;

function timeOf(text) {
  const time = typeof text === "string" ? Date.parse(text) : NaN;
  return Number.isFinite(time) ? time : Date.now();
}

function detailsOf(given) {
  const details = {};
  if (!isObject(given)) return details;
  for (const name of numbers) if (Number.isFinite(given[name])) details[name] = given[name];
  for (const name of texts) if (typeof given[name] === "string") details[name] = given[name].slice(0, 2000);
  return details;
}

function callsOf(given) {
  if (!Array.isArray(given) || given.length > mostMessages) return [];
  return given.map((call) => call?.function).filter((call) => isText(call?.name) && isText(call?.arguments))
    .map(({ name, arguments: values }) => ({ name, arguments: values }));
}

function parametersOf(given) {
  const parameters = {};
  if (!isObject(given)) return parameters;
  for (const [name, value] of Object.entries(given)) {
    const plain = isText(value) || Number.isFinite(value) || typeof value === "boolean";
    const stops = Array.isArray(value) && value.length <= 64 && value.every(isText);
    if (/^\w{1,40}$/.test(name) && (plain || stops)) parameters[name] = value;
  }
  return parameters;
}

function exchangesOf(messages, parameters) {
  if (!Array.isArray(messages) || messages.length > mostMessages) return null;
  const exchanges = [];
  for (const message of messages) {
    if (!isObject(message) || !isText(message.content)) return null;
    const last = exchanges.at(-1);
    if (message.role === "system") parameters.system ??= message.content;
    else if (message.role === "user") exchanges.push({ question: message.content, record: null, view: null });
    else if (message.role === "assistant" && last && !last.record) {
      const reasoning = isText(message.reasoning_content) ? message.reasoning_content : "";
      const calls = callsOf(message.tool_calls);
      last.record = { ...newRecord(), content: message.content, reasoning, calls, details: detailsOf(message.details) };
    } else return null;
  }
  return exchanges;
}

// The conversation that an object from outside stands for, or null if it does not stand for one.
export function fromJson(given) {
  if (!isObject(given)) return null;
  const parameters = parametersOf(given.parameters);
  const exchanges = exchangesOf(given.messages, parameters);
  if (!exchanges?.length) return null;
  return {
    ...newConversation(parameters),
    ...(typeof given.id === "string" && /^[0-9a-f]{16}$/.test(given.id) ? { id: given.id } : {}),
    title: typeof given.title === "string" ? given.title.trim().slice(0, longestTitle) : "",
    created: timeOf(given.created),
    updated: timeOf(given.updated),
    model: typeof given.model === "string" ? given.model.slice(0, longestTitle) : "",
    exchanges,
  };
}

// --- Export and import ---

const format = "nibble conversations";

export function exportJson(conversations) {
  return JSON.stringify({ format, version: 1, conversations: conversations.map(toJson) }, null, 2) + "\n";
}

// The conversations of an exported file; throws an Error that says what is wrong with it.
export function importJson(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  if (!isObject(file) || file.format !== format || !Array.isArray(file.conversations)) {
    throw new Error("it is not an export of this page's conversations");
  }
  if (file.version !== 1) throw new Error(`it has version ${file.version}; this page reads version 1`);
  const conversations = file.conversations.map(fromJson);
  const damaged = conversations.indexOf(null);
  if (damaged !== -1) throw new Error(`its conversation ${damaged + 1} is damaged`);
  return conversations;
}

export const seconds = (ms) => `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;

function parameterText(parameters) {
  return Object.entries(parameters).filter(([name]) => name !== "system" && name !== "logprobs")
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}

export function exportMarkdown(conversation) {
  const about = [new Date(conversation.created).toISOString().slice(0, 16).replace("T", " ") + " UTC"];
  if (conversation.model) about.push(`model ${conversation.model}`);
  const parameters = parameterText(conversation.parameters);
  if (parameters) about.push(parameters);
  const parts = [`# ${titleOf(conversation)}`, about.join(" · ")];
  const system = (conversation.parameters.system ?? "").trim();
  if (system) parts.push("## System", system);
  for (const { question, record } of conversation.exchanges) {
    parts.push("## You", question);
    if (!record) continue;
    parts.push(`## ${conversation.model || "Answer"}`);
    if (record.reasoning) {
      const time = record.details.reasoning_ms ? `Thought for ${seconds(record.details.reasoning_ms)}` : "Thoughts";
      parts.push(`<details><summary>${time}</summary>`, record.reasoning, "</details>");
    }
    parts.push(...record.calls.map((call) => `Call: \`${call.name}(${call.arguments})\``));
    if (record.content || !record.calls.length) parts.push(record.content || "(no answer)");
    if (record.details.error) parts.push(`*${record.details.error}*`);
  }
  return parts.join("\n\n") + "\n";
}

export function fileName(conversation, extension) {
  const slug = titleOf(conversation).toLowerCase().normalize("NFKD").replace(/[^a-z0-9]+/g, "-").slice(0, 48).replace(/^-+|-+$/g, "");
  return `${slug || "conversation"}-${new Date(conversation.updated).toISOString().slice(0, 10)}.${extension}`;
}
