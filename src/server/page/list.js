// The list of conversations, and what can be done with one: open, rename, export, delete.
import { opened, show, startNew } from "./chat.js";
import { exportJson, exportMarkdown, fileName, importJson, titleOf } from "./conversation.js";
import { announce, byId, download, element } from "./dom.js";
import * as library from "./library.js";
import { openMenu } from "./menu.js";

const place = byId("conversations");
const search = byId("search");
const searchFrom = 8;  // conversations; fewer are seen at a glance
const undoTime = 10_000;  // ms
let renamed = null;
let forget = 0;
let onOpened = () => {};

// Told when a conversation was chosen: a narrow window closes the list.
export function onChosen(listener) {
  onOpened = listener;
}

// --- What can be done with one ---

function rename(conversation) {
  renamed = conversation;
  byId("rename").value = titleOf(conversation);
  byId("rename-dialog").showModal();
  byId("rename").select();
}

byId("rename-form").addEventListener("submit", () => library.rename(renamed, byId("rename").value));
byId("rename-cancel").addEventListener("click", () => byId("rename-dialog").close());

function showToast(text, undo) {
  const toast = byId("toast");
  clearTimeout(forget);
  toast.firstElementChild.textContent = text;
  byId("undo").hidden = !undo;
  byId("undo").onclick = () => {
    toast.hidden = true;
    undo();
  };
  toast.hidden = false;
  const hide = () => {
    if (toast.contains(document.activeElement)) forget = setTimeout(hide, 1000);
    else toast.hidden = true;
  };
  forget = setTimeout(hide, undoTime);
}

function remove(conversation) {
  const rows = [...place.querySelectorAll(".open")];
  const at = rows.findIndex((row) => row.dataset.id === conversation.id);
  const inside = place.contains(document.activeElement);
  library.drop(conversation);
  showToast(`Deleted “${titleOf(conversation)}”.`, () => {
    library.keep(conversation);
    show(conversation);
  });
  draw();
  if (!inside) return;
  const left = [...place.querySelectorAll(".open")];
  (left[Math.min(at, left.length - 1)] ?? byId("list-new")).focus();
}

const exportOne = (conversation) => [
  ["Export as Markdown", () => download(fileName(conversation, "md"), "text/markdown", exportMarkdown(conversation))],
  ["Export as JSON", () => download(fileName(conversation, "json"), "application/json", exportJson([conversation]))],
];

function actions(conversation) {
  return [["Rename", () => rename(conversation)], ...exportOne(conversation), ["Delete", () => remove(conversation)]];
}

byId("chat-menu").addEventListener("click", () => openMenu(byId("chat-menu"), actions(opened())));

// --- The list ---

const day = 86_400_000;

function ageOf({ updated }) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (updated >= midnight) return "Today";
  if (updated >= midnight - day) return "Yesterday";
  if (updated >= midnight - 7 * day) return "Last 7 days";
  return new Date(updated).toLocaleDateString("en", { month: "long", year: "numeric" });
}

function row(conversation) {
  const title = titleOf(conversation);
  const current = conversation === opened();
  const choose = element("button", {
    type: "button", class: "open", "data-id": conversation.id, "aria-current": current ? "page" : false, tabindex: "-1", title,
  }, element("span", {}, title));
  if (conversation.control) choose.append(element("span", { class: "busy" }, element("span", { class: "unseen" }, ", answering")));
  // Looked up when pressed: another tab may have changed it meanwhile.
  choose.addEventListener("click", () => openChosen(library.find(conversation.id)));
  const more = element("button", {
    type: "button", class: "quiet more", "aria-haspopup": "menu", "aria-label": `Rename, export or delete “${title}”`, tabindex: "-1",
  }, "•••");
  more.addEventListener("click", () => openMenu(more, actions(library.find(conversation.id))));
  return element("li", current ? { class: "current" } : {}, choose, more);
}

function openChosen(conversation) {
  show(conversation);
  draw();
  onOpened();
}

// One row can be reached by Tab; arrow keys go on from there.
function setTabStop(button) {
  for (const each of place.querySelectorAll("button")) each.tabIndex = -1;
  if (!button) return;
  button.tabIndex = 0;
  button.nextElementSibling.tabIndex = 0;
}

function drawRoom() {
  const { used, most, available } = library.room();
  const percent = Math.ceil((used / most) * 100);
  byId("room").textContent = available ? `${percent} % of the ${most / 1e6} MB for conversations are used.` :
    "This browser keeps nothing for this page: conversations last until it is closed or reloaded.";
  byId("room").hidden = available && percent < 50;
  byId("room").classList.toggle("scarce", percent >= 90);
  const damaged = library.damagedEntries();
  byId("damaged").hidden = damaged.length === 0;
  byId("damaged-export").textContent = damaged.length === 1 ? "Save its text" : "Save their text";
  byId("damaged-delete").textContent = damaged.length === 1 ? "Delete it" : "Delete them";
  byId("damaged").firstElementChild.textContent =
    `${damaged.length} kept conversation${damaged.length === 1 ? " is" : "s are"} damaged and cannot be shown.`;
}

let drawing = 0;
let drawn = "";  // what the rows show

function drawRows(conversations) {
  // Rows that show the same stay, for someone may be about to press one.
  const shows = JSON.stringify(conversations.map((each) =>
    [each.id, titleOf(each), ageOf(each), each === opened(), each.control !== null]));
  if (shows === drawn) return;
  drawn = shows;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const focusedId = focused?.closest("li")?.firstElementChild.dataset.id;
  const groups = [];
  for (const conversation of conversations) {
    const age = ageOf(conversation);
    if (groups.at(-1)?.age !== age) groups.push({ age, rows: [] });
    groups.at(-1).rows.push(row(conversation));
  }
  const top = place.scrollTop;
  place.replaceChildren(...groups.map(({ age, rows }) =>
    element("section", {}, element("h2", {}, age), element("ul", {}, ...rows))));
  place.scrollTop = top;
  const again = focusedId && place.querySelector(`[data-id="${focusedId}"]`);
  setTabStop(again || place.querySelector("[aria-current]") || place.querySelector(".open"));
  if (again) (focused.classList.contains("more") ? again.nextElementSibling : again).focus();
}

export function draw() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  const conversations = library.search(search.value);
  drawRows(conversations);
  const all = library.sorted();
  search.hidden = all.length < searchFrom && search.value === "";
  byId("no-conversations").hidden = conversations.length > 0;
  byId("no-conversations").textContent = search.value ? "Nothing has these words." : "No conversations yet. They are kept in this browser and nowhere else.";
  for (const name of ["export-all", "delete-all"]) byId(name).hidden = all.length === 0;
  drawRoom();
}

const drawSoon = () => (drawing ||= requestAnimationFrame(draw));

// Goes to the conversation after (1) or before (-1) the open one.
export function step(by) {
  const all = library.search(search.value);
  const at = all.indexOf(opened());
  const next = at === -1 ? all[0] : all[at + by];
  if (!next) return;
  openChosen(next);
  place.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  announce(titleOf(next));
}

export function focusList() {
  (place.querySelector(".open[tabindex='0']") ?? byId("list-new")).focus();
}

place.addEventListener("keydown", (event) => {
  const button = event.target.closest("li")?.firstElementChild;
  const conversation = library.find(button?.dataset.id);
  if (!conversation) return;
  const rows = [...place.querySelectorAll(".open")];
  const at = rows.indexOf(button);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (next !== undefined && !event.altKey) {
    const to = rows[Math.min(Math.max(next, 0), rows.length - 1)];
    setTabStop(to);
    to.focus();
  } else if (event.key === "F2") rename(conversation);
  else if (event.key === "Delete") remove(conversation);
  else return;
  event.preventDefault();
});

// --- All of them ---

byId("list-new").addEventListener("click", () => {
  startNew();
  draw();
  onOpened();
});
search.addEventListener("input", draw);

byId("export-all").addEventListener("click", () => {
  download(`conversations-${new Date().toISOString().slice(0, 10)}.json`, "application/json", exportJson(library.sorted()));
});

byId("delete-all").addEventListener("click", () => byId("delete-dialog").showModal());
byId("delete-cancel").addEventListener("click", () => byId("delete-dialog").close());
byId("delete-form").addEventListener("submit", () => {
  const all = library.sorted();
  for (const conversation of all) library.drop(conversation);
  showToast(`Deleted ${all.length} conversation${all.length === 1 ? "" : "s"}.`, () => library.add(all));
});

byId("damaged-export").addEventListener("click", () => {
  download("damaged-conversations.txt", "text/plain", library.damagedEntries().map(([name, text]) => `${name}\n${text}\n`).join("\n"));
});
byId("damaged-delete").addEventListener("click", library.dropDamaged);

byId("import").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async () => {
  const files = [...byId("import-file").files];
  byId("import-file").value = "";
  for (const file of files) {
    try {
      const added = library.add(importJson(await file.text()));
      showToast(`Imported ${added} conversation${added === 1 ? "" : "s"} from ${file.name}.`);
    } catch (error) {
      showToast(`${file.name} was not imported: ${error.message}.`);
    }
  }
});

library.onChange(drawSoon);
