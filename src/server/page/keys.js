// Keyboard shortcuts: one table, from which the page's own list of them follows.
import { byId, element } from "./dom.js";

const mac = /Mac|iPhone|iPad/.test(navigator.platform);
const alt = mac ? "⌥" : "Alt";

// [what it does, keys, where it holds if not everywhere]; the acts of those with Alt and of "/" are app.js's.
const table = [
  ["Send", ["Enter"]],
  ["New line", ["Shift", "Enter"]],
  ["Stop the answer, cancel, close", ["Esc"]],
  ["Edit your last message", ["↑"], "in an empty prompt"],
  ["New chat", [alt, "N"]],
  ["Next conversation", [alt, "↓"]],
  ["Previous conversation", [alt, "↑"]],
  ["List of conversations", [alt, "L"]],
  ["Panel", [alt, "P"]],
  ["Rename a conversation", ["F2"], "in the list"],
  ["Delete a conversation", ["Delete"], "in the list"],
  ["To the prompt", ["/"]],
  ["These shortcuts", ["?"]],
];

const writes = (target) => target.matches("textarea, select, input:not([type=range], [type=checkbox])");

export function showShortcuts() {
  byId("shortcut-rows").replaceChildren(...table.map(([what, keys, where = ""]) =>
    element("div", {}, element("dt", {}, what), element("dd", {}, ...keys.map((key) => element("kbd", {}, key)), where ? ` ${where}` : ""))));
  byId("shortcuts").showModal();
}

// acts: what Alt with each code of a key does, and what "/" does outside of a field.
export function listenToKeys(acts) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey) return;
    let act;
    if (event.altKey && !event.shiftKey) act = acts[event.code];
    else if (!event.altKey && !writes(event.target)) act = event.key === "?" ? showShortcuts : event.key === "/" ? acts["/"] : undefined;
    if (!act) return;
    event.preventDefault();
    act();
  });
}
