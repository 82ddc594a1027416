// A small Markdown made of DOM nodes. What a model writes becomes text nodes and nothing else, so it cannot
// become markup; what is not understood stays as it was written. Images are never fetched.
import { element } from "./dom.js";
import { highlight } from "./highlight.js";

const deepest = 6;  // of quotes, lists and emphasis within each other; deeper stays text

const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,40})/;
const heading = /^ {0,3}(#{1,6})\s+(.*)$/;
const rule = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const quote = /^ {0,3}> ?(.*)$/;
const item = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const divider = /^ {0,3}\|?\s*:?-{1,}:?\s*(\|\s*:?-{1,}:?\s*)*\|?\s*$/;

// Spans are bounded, so that no text takes more than a small multiple of its length.
const span = new RegExp(
  [
    "\\\\([!-/:-@[-`{-~])",
    "(`{1,4})([\\s\\S]{1,2000}?)\\2(?!`)",
    "\\*\\*(?=\\S)([\\s\\S]{1,2000}?\\S)\\*\\*",
    "(?<![\\w*])\\*(?=[^\\s*])([^*]{0,1000}[^\\s*])\\*(?!\\*)",
    "(?<!\\w)_(?=[^\\s_])([^_]{0,1000}[^\\s_])_(?!\\w)",
    "~~(?=\\S)([^~]{1,1000})~~",
    "\\[([^\\]\\n]{1,400})\\]\\(([^()\\s]{1,2000})\\)",
    "(https?://[^\\s<>\"'`*]{1,2000})",
  ].join("|"),
  "g",
);

// The address, if a person may follow it: nothing but the web.
function address(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}

function link(href, ...label) {
  return element("a", { href, target: "_blank", rel: "noopener noreferrer nofollow", title: href }, ...label);
}

function inline(text, parent, depth = 0) {
  if (depth > deepest) return parent.append(text);
  const nested = (name, inner) => {
    const made = element(name);
    inline(inner, made, depth + 1);
    parent.append(made);
  };
  let end = 0;
  for (const found of text.matchAll(span)) {
    const [whole, escaped, , code, bold, starred, underlined, struck, label, target, bare] = found;
    parent.append(text.slice(end, found.index));
    end = found.index + whole.length;
    if (escaped) parent.append(escaped);
    else if (code) parent.append(element("code", {}, code));
    else if (bold) nested("strong", bold);
    else if (starred || underlined) nested("em", starred || underlined);
    else if (struck) nested("del", struck);
    else if (label) {
      const image = text[found.index - 1] === "!";
      const href = image ? null : address(target);
      parent.append(href ? link(href, label) : whole);
    } else if (bare) {
      const shown = bare.replace(/[.,;:!?)\]]+$/, "");
      const href = address(shown);
      parent.append(href ? link(href, shown) : shown, bare.slice(shown.length));
    }
  }
  parent.append(text.slice(end));
}

// A box with the language, a button (chat.js acts on it) and the code.
function codeBlock(language, text) {
  const parts = highlight(language, text).map(([kind, part]) => (kind ? element("span", { class: `code-${kind}` }, part) : part));
  return element("figure", { class: "code", "data-language": language },
    element("figcaption", {}, element("span", {}, language || "code"),
      element("button", { type: "button", class: "quiet copy-code", "aria-label": "Copy this code" }, "Copy")),
    element("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" }, element("code", {}, ...parts)));
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function table(lines) {
  const row = (line, name) => {
    const made = element("tr");
    for (const cell of cells(line)) {
      const box = element(name);
      inline(cell, box);
      made.append(box);
    }
    return made;
  };
  const body = element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td")));
  return element("div", { class: "wide" }, element("table", {}, element("thead", {}, row(lines[0], "th")), body));
}

// One list: its items, each with the lines that belong to it.
function list(lines, at, depth) {
  const first = item.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const made = element(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  while (at < lines.length) {
    const found = item.exec(lines[at]);
    if (!found || /\d/.test(found[2]) !== ordered || rule.test(lines[at])) break;
    const indent = found[1].length + found[2].length + Math.min(found[3].length, 4);
    const inner = [found[4]];
    for (++at; at < lines.length; ++at) {
      const space = lines[at].search(/\S/);
      if (space >= Math.min(indent, 2) || (space === -1 && /^\s{2}/.test(lines[at + 1] ?? ""))) {
        inner.push(lines[at].slice(Math.min(indent, Math.max(space, 0))));
      } else if (space === -1 && item.test(lines[at + 1] ?? "")) {
        continue;
      } else {
        break;
      }
    }
    made.append(element("li", {}, ...blocks(inner, depth + 1)));
  }
  return [made, at];
}

function begins(lines, at) {
  const line = lines[at];
  return fence.test(line) || heading.test(line) || rule.test(line) || quote.test(line) || item.test(line) ||
    (line.includes("|") && divider.test(lines[at + 1] ?? ""));
}

function blocks(lines, depth = 0) {
  const made = [];
  const paragraph = (text) => {
    const block = element("p");
    inline(text, block);
    made.push(block);
  };
  if (depth > deepest) {
    paragraph(lines.join("\n"));
    return made;
  }
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    let found;
    if (line.trim() === "") {
      ++at;
    } else if ((found = fence.exec(line))) {
      const begin = ++at;
      while (at < lines.length && !(lines[at].trim().startsWith(found[1]) && /^[`~\s]*$/.test(lines[at]))) ++at;
      made.push(codeBlock(found[2], lines.slice(begin, at++).join("\n")));
    } else if ((found = heading.exec(line))) {
      const block = element(`h${Math.min(found[1].length + 2, 6)}`);
      inline(found[2], block);
      made.push(block);
      ++at;
    } else if (rule.test(line)) {
      made.push(element("hr"));
      ++at;
    } else if (quote.test(line)) {
      const inner = [];
      for (; at < lines.length && (found = quote.exec(lines[at])); ++at) inner.push(found[1]);
      made.push(element("blockquote", {}, ...blocks(inner, depth + 1)));
    } else if (item.test(line)) {
      const [block, next] = list(lines, at, depth);
      made.push(block);
      at = next;
    } else if (line.includes("|") && divider.test(lines[at + 1] ?? "")) {
      const begin = at;
      while (at < lines.length && lines[at].includes("|")) ++at;
      made.push(table(lines.slice(begin, at)));
    } else {
      const begin = at++;
      while (at < lines.length && lines[at].trim() !== "" && !begins(lines, at)) ++at;
      paragraph(lines.slice(begin, at).join("\n"));
    }
  }
  return made;
}

// Whether the node `shown` now shows what `fresh` does. A block of code that grows keeps its node, so that
// scrolling, selecting and copying go on while it streams.
function adopts(shown, fresh) {
  if (shown.isEqualNode(fresh)) return true;
  if (shown.className !== "code" || fresh.className !== "code" || shown.dataset.language !== fresh.dataset.language) return false;
  const code = shown.querySelector("code");
  const parts = [...fresh.querySelector("code").childNodes];
  let same = 0;
  while (same < parts.length && code.childNodes[same]?.isEqualNode(parts[same])) ++same;
  while (code.childNodes.length > same) code.lastChild.remove();
  code.append(...parts.slice(same));
  return true;
}

// A text that grows. What can no longer change is rendered once; only the last blocks are rendered again.
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.text = "";
    this.settled = 0;  // characters
    this.open = [];    // nodes of what may still change
  }

  append(text) {
    this.text += text;
  }

  render() {
    const boundary = this.lastBoundary();
    const settled = boundary > this.settled ? blocks(this.text.slice(this.settled, boundary).split("\n")) : [];
    this.settled = boundary;
    const nodes = [...settled, ...blocks(this.text.slice(boundary).split("\n"))];
    let kept = 0;
    while (kept < nodes.length && kept < this.open.length && adopts(this.open[kept], nodes[kept])) {
      nodes[kept] = this.open[kept];
      ++kept;
    }
    for (const node of this.open.slice(kept)) node.remove();
    this.root.append(...nodes.slice(kept));
    this.open = nodes.slice(settled.length);
  }

  // After the last empty line outside a fence that no list goes over.
  lastBoundary() {
    let boundary = this.settled;
    let inside = "";
    let empty = false;
    for (let at = this.settled; at < this.text.length;) {
      const newline = this.text.indexOf("\n", at);
      const line = this.text.slice(at, newline === -1 ? this.text.length : newline);
      const found = fence.exec(line);
      if (!inside && empty && /^\S/.test(line) && !item.test(line)) boundary = at;
      if (found) inside = inside ? (line.trim().startsWith(inside) ? "" : inside) : found[1];
      empty = line.trim() === "";
      at = newline === -1 ? this.text.length : newline + 1;
    }
    return boundary;
  }
}
