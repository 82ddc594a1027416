// A menu at a button: arrow keys go through it, Escape gives the focus back.
import { byId, element } from "./dom.js";

const menu = byId("menu");
let anchor = null;

export function closeMenu(refocus = false) {
  if (!anchor) return false;
  menu.hidden = true;
  anchor.setAttribute("aria-expanded", "false");
  if (refocus) anchor.focus();
  anchor = null;
  return true;
}

// items: [[label, act]]
export function openMenu(button, items) {
  const again = anchor === button;
  closeMenu();
  if (again) return;
  anchor = button;
  anchor.setAttribute("aria-expanded", "true");
  menu.replaceChildren(...items.map(([label, act]) => {
    const item = element("button", { type: "button", role: "menuitem", tabindex: "-1" }, label);
    item.addEventListener("click", () => {
      closeMenu(true);
      act();
    });
    return item;
  }));
  menu.hidden = false;
  const at = button.getBoundingClientRect();
  const size = menu.getBoundingClientRect();
  const edge = 8;
  menu.style.left = `${Math.min(Math.max(edge, at.right - size.width), innerWidth - size.width - edge)}px`;
  menu.style.top = `${at.bottom + size.height + edge > innerHeight ? Math.max(edge, at.top - size.height - 4) : at.bottom + 4}px`;
  menu.firstElementChild.focus();
}

menu.addEventListener("keydown", (event) => {
  const items = [...menu.children];
  const at = items.indexOf(document.activeElement);
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (next !== undefined) items[(next + items.length) % items.length].focus();
  else if (event.key === "Escape" || event.key === "Tab") closeMenu(true);
  else return;
  event.preventDefault();
  event.stopPropagation();
});
document.addEventListener("pointerdown", (event) => {
  if (anchor && !menu.contains(event.target) && !anchor.contains(event.target)) closeMenu();
});
addEventListener("resize", () => closeMenu());
