// Syntax colours of code: a tokenizer driven by a table of languages. highlight(language, text) gives pairs of a
// class ("" for plain text) and a text; the texts joined are the input. A rule never looks further back than a
// bounded distance, so the time is linear in the text.

const longest = 200_000;  // characters; longer code stays plain

const set = (words) => new Set(words.split(" "));

const blockComment = "\\/\\*[^]*?(?:\\*\\/|$)";
const lineComment = "\\/\\/[^\\n]*";
const doubleQuoted = '"(?:[^"\\\\\\n]|\\\\[^])*"?';
const singleQuoted = "'(?:[^'\\\\\\n]|\\\\[^])*'?";
const number = "(?<![\\w.])(?:0[xX][\\da-fA-F_']+|0[bB][01_']+|\\d[\\d_']*(?:\\.\\d[\\d_]*)?(?:[eE][+-]?\\d+)?)[\\w%]{0,8}";
const word = "[A-Za-z_$][\\w$]*";

const cKeywords = "if else for while do switch case default break continue return goto struct enum union typedef sizeof static const volatile extern inline";
const languages = {
  c: {
    comment: [lineComment, blockComment], string: ['R"(?<raw>[^()\\\\\\s]{0,16})\\([^]*?(?:\\)\\k<raw>"|$)', doubleQuoted, singleQuoted],
    meta: ["(?<=^|\\n)[ \\t]{0,40}#[^\\n]*"],
    keyword: set(`${cKeywords} register restrict signed unsigned auto class namespace template typename public private protected virtual override final ` +
      "constexpr consteval constinit noexcept new delete using operator friend explicit mutable this try catch throw co_await co_yield co_return " +
      "concept requires export import module static_assert decltype alignas alignof thread_local static_cast reinterpret_cast const_cast dynamic_cast"),
    literal: set("true false nullptr NULL"),
    type: set("void bool char short int long float double size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t wchar_t char8_t"),
  },
  javascript: {
    comment: [lineComment, blockComment],
    string: [doubleQuoted, singleQuoted, "`(?:[^`\\\\]|\\\\[^])*`?", "(?<=[(,=:;!&|?{}[\\n][ \\t]{0,4})\\/(?![*\\/])(?:[^\\/\\\\\\n[]|\\\\.|\\[(?:[^\\]\\\\\\n]|\\\\.){0,100}\\]){1,200}\\/[a-z]{0,8}"],
    keyword: set("if else for while do switch case default break continue return function const let var new delete typeof instanceof in of class extends " +
      "super this import export from as async await yield try catch finally throw static get set void with debugger interface type enum implements " +
      "declare namespace readonly public private protected abstract keyof satisfies"),
    literal: set("true false null undefined NaN Infinity"),
    type: set("string number boolean any unknown never object symbol bigint"),
  },
  python: {
    comment: ["#[^\\n]*"],
    string: ['[rRbBuUfF]{0,2}"""[^]*?(?:"""|$)', "[rRbBuUfF]{0,2}'''[^]*?(?:'''|$)", `[rRbBuUfF]{0,2}${doubleQuoted}`, `[rRbBuUfF]{0,2}${singleQuoted}`],
    meta: ["@[A-Za-z_][\\w.]*"],
    keyword: set("if elif else for while break continue return def class lambda import from as with try except finally raise pass yield async await " +
      "global nonlocal del assert in is not and or match case"),
    literal: set("True False None"),
    type: set("int float str bool bytes list dict set tuple object self cls"),
  },
  rust: {
    comment: [lineComment, blockComment], string: [doubleQuoted, "b?'(?:[^'\\\\\\n]|\\\\.[^'\\n]{0,8})'"], meta: ["#!?\\[[^\\]\\n]*\\]?", "'[a-z_]+"],
    keyword: set("as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return self Self " +
      "static struct super trait type unsafe use where while"),
    literal: set("true false"),
    type: set("bool char str i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64"),
  },
  go: {
    comment: [lineComment, blockComment], string: [doubleQuoted, singleQuoted, "`[^`]*`?"],
    keyword: set("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var"),
    literal: set("true false nil iota"),
    type: set("bool byte complex64 complex128 error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 uintptr any"),
  },
  java: {
    comment: [lineComment, blockComment], string: ['"""[^]*?(?:"""|$)', doubleQuoted, singleQuoted], meta: ["@[A-Za-z_][\\w.]*"],
    keyword: set("abstract as assert break case catch class const continue default do else enum extends final finally for foreach fun goto if implements import in " +
      "instanceof interface internal is native new object out override package private protected public readonly record ref return sealed static super switch " +
      "synchronized this throw throws transient try typeof using val var virtual void volatile when where while yield async await get set let guard func init extension protocol struct namespace"),
    literal: set("true false null nil"),
    type: set("boolean byte char short int long float double string bool decimal object Int Long String Boolean Double Float Unit Any"),
  },
  shell: {
    comment: ["(?<![^\\s;(])#[^\\n]*"], string: ['\\$?"(?:[^"\\\\]|\\\\[^])*"?', "\\$?'[^']*'?"],
    name: ["\\$\\{[^}\\n]{0,100}\\}?", "\\$[\\w@#?*!$-]"], meta: ["(?<=\\s)--?[A-Za-z][\\w-]*"],
    word: "[A-Za-z_][\\w.-]*",
    keyword: set("if then else elif fi for while until do done case esac in function return exit break continue local export readonly declare unset shift set source trap exec eval " +
      "sudo cd echo printf test read FROM RUN COPY ADD ENV ENTRYPOINT CMD WORKDIR EXPOSE ARG USER LABEL VOLUME HEALTHCHECK"),
    literal: set("true false"),
  },
  sql: {
    comment: ["--[^\\n]*", blockComment], string: ["'(?:[^']|'')*'?", '"[^"\\n]*"?'], fold: true,
    keyword: set("select from where and or not in is like between join inner left right full outer cross on as group by order having limit offset union all distinct insert into " +
      "values update set delete create table view index drop alter add column primary key foreign references unique check default constraint exists case when then else end with " +
      "recursive returning begin commit rollback asc desc over partition using if"),
    literal: set("null true false"),
    type: set("int integer bigint smallint serial text varchar char boolean date time timestamp timestamptz real double numeric decimal json jsonb uuid blob"),
  },
  json: { comment: [lineComment], string: [doubleQuoted], literal: set("true false null"), keys: true },
  yaml: {
    comment: ["(?<![^\\s])#[^\\n]*"], string: [doubleQuoted, "'(?:[^'\\n]|'')*'?"], meta: ["(?<=^|\\n)---[^\\n]*", "[&*!][\\w!.-]+"],
    word: "[A-Za-z_][\\w.\\/-]*", literal: set("true false null yes no on off"), keys: true,
  },
  toml: {
    comment: ["[#;][^\\n]*"], string: ['"""[^]*?(?:"""|$)', doubleQuoted, singleQuoted], meta: ["(?<=^|\\n)[ \\t]{0,40}\\[[^\\n]*"],
    word: "[A-Za-z_][\\w.-]*", literal: set("true false"), keys: true, assigns: "=",
  },
  css: {
    comment: [blockComment], string: [doubleQuoted, singleQuoted], meta: ["@[\\w-]+", "#[\\da-fA-F]{3,8}\\b"], name: ["--[\\w-]+"],
    word: "[.#]?[A-Za-z_][\\w-]*", literal: set("inherit initial unset none auto"), keys: true,
  },
  diff: {
    added: ["(?<=^|\\n)\\+[^\\n]*"], removed: ["(?<=^|\\n)-[^\\n]*"], meta: ["(?<=^|\\n)(?:@@|diff |index )[^\\n]*"],
    plain: true,
  },
  html: {
    comment: ["<!--[^]*?(?:-->|$)"], markup: ["<[\\/!?]?[A-Za-z][^<>]{0,4000}>?"], meta: ["&#?\\w{1,32};"],
    plain: true,
  },
  tag: { string: ['"[^"]*"?', "'[^']*'?"], word: "[A-Za-z_:][\\w:.-]*", keys: true, assigns: "=" },
};

const aliases = {
  c: "c++ cpp cc cxx h hpp hxx cuda cu objc objective-c glsl hlsl", javascript: "js jsx mjs cjs ts tsx typescript", python: "py python3 pyi",
  rust: "rs", go: "golang", java: "kotlin kt kts scala swift csharp cs c# dart php groovy", json: "jsonc json5 jsonl",
  shell: "sh bash zsh fish console shell-session dockerfile containerfile makefile make cmake powershell", sql: "postgresql mysql sqlite",
  yaml: "yml", toml: "ini conf cfg properties", css: "scss less", diff: "patch", html: "xml svg vue svelte",
};
const languageOf = new Map(Object.keys(languages).filter((name) => name !== "tag").map((name) => [name, name]));
for (const [name, others] of Object.entries(aliases)) for (const other of others.split(" ")) languageOf.set(other, name);

const kinds = ["comment", "string", "meta", "name", "added", "removed", "markup"];

// One expression a language: a named group a kind, then numbers and words.
function expression({ word: words = word, plain, ...language }) {
  const groups = kinds.filter((kind) => language[kind]).map((kind) => `(?<${kind}>${language[kind].join("|")})`);
  if (!plain) groups.push(`(?<number>${number})`, `(?<word>${words})`);
  return new RegExp(groups.join("|"), "g");
}

const expressions = new Map();
function expressionOf(name) {
  if (!expressions.has(name)) expressions.set(name, expression(languages[name]));
  return expressions.get(name);
}

const after = /[ \t]{0,40}(\S?)/y;

function follows(text, at) {
  after.lastIndex = at;
  return after.exec(text)?.[1] ?? "";
}

function wordClass(language, found, next) {
  const key = language.fold ? found.toLowerCase() : found;
  if (language.keys && next === (language.assigns ?? ":")) return "name";
  if (language.keyword?.has(key)) return "keyword";
  if (language.literal?.has(key)) return "literal";
  if (language.type?.has(key) || (language.keyword && !language.fold && /^[A-Z]\w*[a-z]/.test(found))) return "type";
  return next === "(" ? "call" : "";
}

function* pieces(name, text) {
  const language = languages[name];
  let end = 0;
  for (const found of text.matchAll(expressionOf(name))) {
    if (found.index > end) yield ["", text.slice(end, found.index)];
    end = found.index + found[0].length;
    const kind = kinds.find((each) => found.groups[each] !== undefined);
    if (kind === "markup") {
      const open = /^<[/!?]?[\w:.-]+/.exec(found[0])[0];
      yield ["keyword", open];
      yield* pieces("tag", found[0].slice(open.length));
    } else if (kind === "string" && language.keys && name !== "tag" && follows(text, end) === ":") yield ["name", found[0]];
    else if (kind) yield [kind, found[0]];
    else if (found.groups.number !== undefined) yield ["number", found[0]];
    else yield [wordClass(language, found[0], follows(text, end)), found[0]];
  }
  if (end < text.length) yield ["", text.slice(end)];
}

export function highlight(language, text) {
  const name = languageOf.get(language.toLowerCase());
  if (!name || text.length > longest) return [["", text]];
  const made = [];
  for (const [kind, part] of pieces(name, text)) {
    if (part === "") continue;
    if (made.length && made.at(-1)[0] === kind) made.at(-1)[1] += part;
    else made.push([kind, part]);
  }
  return made;
}
