// The conversations of this page, newest first: in memory, and in what the browser keeps. Whoever shows them is
// told of each change.
import { newId, titleOf, toJson } from "./conversation.js";
import * as store from "./store.js";

const all = new Map();  // by id; only those with a question in them
let damaged = [];       // [name, text] of entries that could not be read
const listeners = [];
let onTrouble = () => {};

export const onChange = (listener) => listeners.push(listener);

// `listener` is given a sentence when something could not be kept, and "" when it is kept again.
export function onStoreTrouble(listener) {
  onTrouble = listener;
}

function tell(what = {}) {
  for (const listener of listeners) listener(what);
}

export const find = (id) => all.get(id);
export const sorted = () => [...all.values()].sort((a, b) => b.updated - a.updated);
export const damagedEntries = () => damaged;
export const room = () => ({ used: store.used(), most: store.room, available: store.available });

// Whether it could be kept. Without a place it still lives as long as the page.
export function keep(conversation) {
  all.set(conversation.id, conversation);
  const trouble = store.save(conversation);
  onTrouble(trouble);
  tell();
  return trouble === "";
}

export function drop(conversation) {
  all.delete(conversation.id);
  store.remove(conversation.id);
  onTrouble("");
  tell({ gone: conversation });
}

export function dropDamaged() {
  store.removeEntries(damaged.map(([name]) => name));
  damaged = [];
  tell();
}

export function rename(conversation, title) {
  conversation.title = title.trim();
  keep(conversation);
}

// Adds what is new of them; the count of those added.
export function add(conversations) {
  let added = 0;
  for (const conversation of conversations) {
    const here = all.get(conversation.id);
    if (here && JSON.stringify(toJson(here)) === JSON.stringify(toJson(conversation))) continue;
    if (here) conversation.id = newId();
    ++added;
    if (!keep(conversation)) break;
  }
  return added;
}

// Those whose title or text has the words.
export function search(words) {
  const wanted = words.trim().toLowerCase();
  const has = (text) => text.toLowerCase().includes(wanted);
  return sorted().filter((conversation) => wanted === "" || has(titleOf(conversation)) ||
    conversation.exchanges.some(({ question, record }) => has(question) || has(record?.content ?? "")));
}

const loaded = store.load();
for (const conversation of loaded.conversations) all.set(conversation.id, conversation);
damaged = loaded.damaged;

// One that is being answered here is this tab's to keep.
store.onForeignChange((id, conversation) => {
  const here = all.get(id);
  if (here?.control) return;
  if (conversation) all.set(id, conversation);
  else all.delete(id);
  tell(conversation ? { replaced: conversation } : here ? { gone: here } : {});
});
