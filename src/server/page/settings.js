// The parameters of a request, as the form has them; kept in this browser.
import { byId } from "./dom.js";

const place = "nibble.parameters";
const form = byId("parameter-form");

const fields = () => [...form.elements].filter((field) => field.name);
const read = (field) => (field.type === "checkbox" ? field.checked : field.value);

function write(field, value) {
  if (field.type === "checkbox") field.checked = value === true;
  else field.value = String(value);
}

function showValues() {
  for (const shown of form.querySelectorAll("output")) {
    shown.value = Number(form.elements[shown.htmlFor.value].value).toFixed(2);
  }
}

function keep() {
  showValues();
  try {
    localStorage.setItem(place, JSON.stringify(Object.fromEntries(fields().map((field) => [field.name, read(field)]))));
  } catch {
    // A browser may forbid it; then the parameters last as long as the page.
  }
}

export function restoreParameters() {
  try {
    const kept = JSON.parse(localStorage.getItem(place) ?? "{}");
    for (const field of fields()) if (field.name in kept) write(field, kept[field.name]);
  } catch {
    form.reset();
  }
  showValues();
  form.addEventListener("input", keep);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(keep));  // once the fields have their defaults again
}

export const systemMessage = () => form.elements.system.value.trim();

// Without a seed of the user's the page draws one, so that an answer can be had again.
export function requestParameters() {
  const parameters = {
    temperature: Number(form.elements.temperature.value),
    top_p: Number(form.elements.top_p.value),
    seed: form.elements.seed.value === "" ? Math.floor(Math.random() * 1e6) : Number(form.elements.seed.value),
  };
  if (form.elements.max_tokens.value !== "") parameters.max_tokens = Number(form.elements.max_tokens.value);
  if (form.elements.reasoning_effort.value) parameters.reasoning_effort = form.elements.reasoning_effort.value;
  if (form.elements.logprobs.checked) Object.assign(parameters, { logprobs: true, top_logprobs: 5 });
  return parameters;
}
