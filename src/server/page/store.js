// What this browser keeps: an entry a conversation, and the parameters of new ones. The names begin with the
// page's path, because one origin may serve several of these pages under different prefixes.
import { fromJson, toJson } from "./conversation.js";

const prefix = `nibble:${new URL(".", import.meta.url).pathname}:`;
const chats = `${prefix}chat:`;

// Browsers give an origin about 5 million characters; the rest is for other pages of this origin.
export const room = 4_000_000;

const unreadable = "This browser keeps nothing for this page, so conversations last until it is closed or reloaded.";

// A browser that forbids storage throws on any touch of it.
function attempt(action, otherwise) {
  try {
    return action();
  } catch {
    return otherwise;
  }
}

export const available = attempt(() => {
  localStorage.setItem(`${prefix}probe`, "");
  localStorage.removeItem(`${prefix}probe`);
  return true;
}, false);

function entries() {
  return attempt(() => Array.from({ length: localStorage.length }, (_, i) => localStorage.key(i))
    .filter((name) => name.startsWith(prefix)).map((name) => [name, localStorage.getItem(name) ?? ""]), []);
}

export const used = () => entries().reduce((sum, [name, text]) => sum + name.length + text.length, 0);

const parse = (text) => attempt(() => JSON.parse(text), null);

// A damaged entry is left where it is: its text may be worth something to its owner.
export function load() {
  const conversations = [];
  const damaged = [];
  for (const [name, text] of entries()) {
    if (!name.startsWith(chats)) continue;
    const conversation = fromJson(parse(text));
    if (conversation && chats + conversation.id === name) conversations.push(conversation);
    else damaged.push([name, text]);
  }
  return { conversations, damaged };
}

export function removeEntries(names) {
  for (const name of names) attempt(() => localStorage.removeItem(name));
}

// "" once it is kept, else a sentence that says why it is not.
export function save(conversation) {
  if (!available) return unreadable;
  const name = chats + conversation.id;
  const text = JSON.stringify(toJson(conversation));
  const full = `The ${room / 1e6} MB for conversations in this browser are full, so this one is not kept. ` +
    "Delete some of the list, or export and then delete them.";
  const before = attempt(() => localStorage.getItem(name)?.length ?? 0, 0);
  if (used() - before + name.length + text.length > room) return full;
  return attempt(() => {
    localStorage.setItem(name, text);
    return "";
  }, full);
}

export const remove = (id) => removeEntries([chats + id]);

// Another tab of this page kept, changed or deleted a conversation; conversation is null when it is gone.
export function onForeignChange(take) {
  addEventListener("storage", ({ key, newValue }) => {
    if (key?.startsWith(chats)) take(key.slice(chats.length), newValue === null ? null : fromJson(parse(newValue)));
  });
}

// --- Parameters of new conversations ---

export function keepDefaults(parameters) {
  return attempt(() => {
    localStorage.setItem(`${prefix}parameters`, JSON.stringify(parameters));
    return true;
  }, false);
}

export function defaults() {
  const kept = parse(attempt(() => localStorage.getItem(`${prefix}parameters`), null) ?? "null");
  return kept !== null && typeof kept === "object" && !Array.isArray(kept) ? kept : {};
}

// --- What a reload of this tab needs: which conversation is open, and what was not sent yet ---

export function keepTab(state) {
  attempt(() => sessionStorage.setItem(`${prefix}tab`, JSON.stringify(state)));
}

export function tab() {
  const kept = parse(attempt(() => sessionStorage.getItem(`${prefix}tab`), null) ?? "null");
  return kept !== null && typeof kept === "object" ? kept : {};
}
