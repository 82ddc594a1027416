// Elements without markup in strings: text is only ever put in as text.

export const byId = (id) => document.getElementById(id);

// element("p", { class: "note" }, "text", child, ...)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value !== false) made.setAttribute(attribute, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

export function button(label, press, attributes = {}) {
  const made = element("button", { type: "button", class: "quiet", ...attributes }, label);
  made.addEventListener("click", press);
  return made;
}

// For readers of the screen who cannot see what changed.
export function announce(text) {
  byId("announcer").textContent = text;
}

// Works over plain HTTP too, where there is no navigator.clipboard.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return copied;
  }
}

// Copies and says so on the button for a moment.
export async function copyWith(made, text) {
  const copied = await copyText(text);
  made.textContent = copied ? "Copied" : "Copying is not allowed here";
  announce(made.textContent);
  setTimeout(() => (made.textContent = "Copy"), 1500);
}

export function download(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
