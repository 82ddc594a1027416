// Talks to the server that this page came from, and says in words what went wrong.

// Paths are relative to this file, so that a proxy may serve the page under any prefix.
const root = new URL(".", import.meta.url);

let key = "";  // in memory only: it goes with the page

export function setKey(value) {
  key = value.trim();
}

// What a person can read. `status` is HTTP's, or 0 where there was no answer.
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

async function errorOf(response) {
  let message = `the server answered with status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // A proxy's page, perhaps: the status has to do.
  }
  if (response.status === 429) message = "the server is busy: its queue is full; try again in a moment";
  return new ServerError(sentence(String(message)), response.status);
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, root), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function getJson(path) {
  return (await ask(path)).json();
}

// The data of each server-sent event.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const whole = held.split("\n\n");
    held = whole.pop();
    for (const event of whole) {
      for (const line of event.split("\n")) if (line.startsWith("data: ")) yield line.slice(6);  // others are comments
    }
  }
}

// Gives each chunk of a streamed answer to `take`; resolves when the answer is whole.
export async function streamChat(request, signal, take) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const broken = "The connection broke off in the midst of the answer.";
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(sentence(String(chunk.error.message)), 500);
      take(chunk);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError(broken);
  }
  throw new ServerError(broken);
}
