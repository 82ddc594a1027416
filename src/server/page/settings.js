// The form of a conversation's parameters, and what of them goes into a request.
import { byId } from "./dom.js";

const form = byId("parameter-form");
const fields = () => [...form.elements].filter((field) => field.name);
const blank = new Map(fields().map((field) => [field.name, field.type === "checkbox" ? field.defaultChecked : field.defaultValue ?? ""]));

// A model's own default in place of the page's.
export function setDefaultTemperature(value) {
  blank.set("temperature", String(value));
  form.elements.temperature.defaultValue = String(value);  // what a reset gives
}

// A line is a text; \n, \t and \\ in it stand for a line break, a tab and a backslash.
const marks = { n: "\n", t: "\t", "\\": "\\" };
const stopTexts = (lines) => lines.split("\n").filter((line) => line !== "").map((line) => line.replace(/\\([nt\\])/g, (_, mark) => marks[mark]));
const stopLines = (texts) => texts.map((text) => text.replace(/\\/g, "\\\\").replace(/\n/g, "\\n").replace(/\t/g, "\\t")).join("\n");

function read(field) {
  if (field.type === "checkbox") return field.checked;
  if (field.type === "range" || field.type === "number") return field.value === "" ? undefined : Number(field.value);
  if (field.name === "stop") return field.value === "" ? undefined : stopTexts(field.value);
  return field.value === "" ? undefined : field.value;
}

function write(field, value) {
  if (field.type === "checkbox") field.checked = value ?? blank.get(field.name);
  else if (value === undefined) field.value = blank.get(field.name);
  else field.value = Array.isArray(value) ? stopLines(value) : String(value);
}

function showValues() {
  for (const shown of form.querySelectorAll("output")) {
    shown.value = Number(form.elements[shown.htmlFor.value].value).toFixed(2);
  }
}

export function showParameters(parameters) {
  for (const field of fields()) write(field, parameters[field.name]);
  showValues();
}

export function shownParameters() {
  return Object.fromEntries(fields().map((field) => [field.name, read(field)]).filter(([, value]) => value !== undefined));
}

// `take` is given the parameters after each change.
export function onParameters(take) {
  const tell = () => {
    showValues();
    take(shownParameters());
  };
  form.addEventListener("input", tell);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(tell));  // once the fields have their defaults again
}

// What is no JSON is for the server to refuse.
function toolsOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Without a seed of the user's the page draws one, so that an answer can be had again.
export function requestParameters(parameters) {
  const { system, logprobs, seed, tools, ...rest } = parameters;
  const request = { seed: seed ?? Math.floor(Math.random() * 1e6), ...rest };
  if (tools) request.tools = toolsOf(tools);
  else if (logprobs) Object.assign(request, { logprobs: true, top_logprobs: 5 });
  return request;
}
