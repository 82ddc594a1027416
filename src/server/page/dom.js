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
