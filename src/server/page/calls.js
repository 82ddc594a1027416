// Calls of tools in an answer, as the model writes them. The page runs none.
import { element } from "./dom.js";

// Adds a chunk's fragments to the calls so far: {name, arguments} each.
export function takeCalls(calls, fragments) {
  for (const { index, function: part } of fragments) {
    const call = (calls[index ?? calls.length] ??= { name: "", arguments: "" });
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }
}

export function showCalls(place, calls) {
  place.hidden = calls.length === 0;
  place.replaceChildren(...calls.map(({ name, arguments: values }) =>
    element("li", {}, element("strong", {}, name), element("code", {}, `(${values})`))));
}
