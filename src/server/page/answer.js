// One answer on the page: grows while it streams, then says how it went. What it shows is in its record
// (conversation.js), from which a kept answer is shown again.
import { showCalls, takeCalls } from "./calls.js";
import { seconds } from "./conversation.js";
import { button, copyWith, element } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { tokenView } from "./tokens.js";

const endings = {
  length: "cut off at the token limit", abort: "ended by the server", stopped: "stopped", interrupted: "interrupted by a reload",
};

export class Answer {
  // `again`: what a press of Regenerate does. `around` is given each change of the page to carry out.
  constructor(record, again, around) {
    this.record = record;
    this.again = again;
    this.around = around;
    this.begun = performance.now();
    this.first = this.last = this.thought = 0;  // when text came, and when thinking began
    this.chunks = 0;
    this.drawing = 0;
    this.drawn = 0;

    this.reasoningText = element("div", { class: "prose" });
    this.reasoningSummary = element("summary", {});
    this.reasoning = element("details", { class: "reasoning", hidden: true }, this.reasoningSummary, this.reasoningText);
    this.body = element("div", { class: "prose" });
    this.calls = element("ul", { class: "calls", "aria-label": "Calls of tools", hidden: true });
    this.tokensPlace = element("div", { hidden: true });
    this.foot = element("div", { class: "foot" });
    this.root = element("li", { class: "turn answer pending", "aria-busy": "true" }, element("h3", { class: "unseen" }, "Answer"),
      this.reasoning, this.body, this.calls, this.tokensPlace, this.foot);
    this.bodyView = new MarkdownView(this.body);
    this.reasoningView = new MarkdownView(this.reasoningText);
  }

  // One that is over already.
  static kept(record, again) {
    const answer = new Answer(record, again, (change) => change());
    const { seed, finish_reason: finish, error } = record.details;
    if (seed !== undefined && !finish && !error) record.details.finish_reason = "interrupted";  // it began here
    answer.bodyView.append(record.content);
    answer.reasoningView.append(record.reasoning);
    answer.reasoning.hidden = record.reasoning === "";
    answer.show();
    return answer;
  }

  take(chunk) {
    const { details } = this.record;
    if (chunk.usage) this.takeUsage(chunk.usage);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (choice.logprobs?.content) this.record.tokens.push(...choice.logprobs.content);
    if (choice.finish_reason) details.finish_reason = choice.finish_reason;
    if (!content && !reasoning && !calls) return;
    this.last = performance.now();
    this.first ||= this.last;
    details.first_ms ??= Math.round(this.first - this.begun);
    ++this.chunks;
    if (reasoning) {
      if (!this.thought) this.startThinking();
      this.record.reasoning += reasoning;
      this.reasoningView.append(reasoning);
    }
    if (content) {
      this.stopThinking();
      this.record.content += content;
      this.bodyView.append(content);
    }
    if (calls) {
      this.stopThinking();
      takeCalls(this.record.calls, calls);
      this.root.classList.remove("pending");
      this.around(() => showCalls(this.calls, this.record.calls));
    }
    this.drawSoon();
  }

  takeUsage(usage) {
    const { details } = this.record;
    details.tokens = usage.completion_tokens;
    details.prompt_tokens = usage.prompt_tokens;
    details.cached_tokens = usage.prompt_tokens_details?.cached_tokens;
    details.reasoning_tokens = usage.completion_tokens_details?.reasoning_tokens;
    for (const [name, value] of Object.entries(details)) if (value === undefined) delete details[name];
  }

  // --- The timer of its reasoning ---

  startThinking() {
    this.thought = this.last;
    this.reasoning.hidden = false;
    this.reasoning.classList.add("thinking");
    const show = () => (this.reasoningSummary.textContent = `Thinking for ${Math.floor((performance.now() - this.thought) / 1000)} s`);
    show();
    this.ticking = setInterval(show, 250);
  }

  stopThinking() {
    if (!this.ticking) return;
    clearInterval(this.ticking);
    this.ticking = 0;
    this.record.details.reasoning_ms = Math.round(performance.now() - this.thought);
    this.reasoning.classList.remove("thinking");
    this.showThought();
  }

  showThought() {
    const { reasoning_ms: time, reasoning_tokens: tokens } = this.record.details;
    const parts = [time === undefined ? "Thoughts" : `Thought for ${time < 50 ? "a moment" : seconds(time)}`];
    if (tokens) parts.push(`${tokens} tokens`);
    this.reasoningSummary.textContent = parts.join(" · ");
  }

  // --- Drawing ---

  // Once a frame, and with rests in proportion when a long text takes long to lay out.
  drawSoon() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      const begin = performance.now();
      this.draw();
      this.drawing = setTimeout(() => {
        this.drawing = 0;
        if (this.stale) this.drawSoon();
      }, 3 * (performance.now() - begin));
    });
  }

  get stale() {
    return this.drawn !== this.bodyView.text.length + this.reasoningView.text.length;
  }

  draw() {
    if (!this.stale) return;
    this.drawn = this.bodyView.text.length + this.reasoningView.text.length;
    this.root.classList.toggle("pending", this.drawn === 0 && this.record.calls.length === 0);
    this.around(() => {
      this.bodyView.render();
      this.reasoningView.render();
    });
  }

  // --- Its end ---

  tokenCount() {
    return this.record.details.tokens ?? (this.record.tokens.length || this.chunks);
  }

  // The answer is whole, was stopped, or `error` says why neither.
  end({ stopped = false, error = "" }) {
    clearTimeout(this.drawing);
    cancelAnimationFrame(this.drawing);
    this.stopThinking();
    const { details } = this.record;
    if (stopped) details.finish_reason = "stopped";
    if (error) details.error = error;
    details.tokens = this.tokenCount();
    // Of what came at once nobody knows the rate.
    if (this.last - this.first > 100 && details.tokens > 1) {
      details.rate = Number((((details.tokens - 1) * 1000) / (this.last - this.first)).toFixed(1));
    }
    this.show();
  }

  summary() {
    const { tokens = 0, rate, first_ms: first, cached_tokens: cached, prompt_tokens: prompt, seed, finish_reason: finish } = this.record.details;
    const parts = [`${tokens} token${tokens === 1 ? "" : "s"}`];
    if (rate) parts.push(`${rate.toFixed(1)} a second`);
    if (first !== undefined) parts.push(`the first after ${(first / 1000).toFixed(first < 9950 ? 2 : 0)} s`);
    if (cached) parts.push(`${cached} of ${prompt} prompt tokens reused`);
    if (seed !== undefined) parts.push(`seed ${seed}`);
    if (endings[finish]) parts.push(endings[finish]);
    return parts.join(" · ");
  }

  show() {
    const { record } = this;
    this.draw();
    this.root.classList.remove("pending");
    this.root.removeAttribute("aria-busy");
    this.showThought();
    showCalls(this.calls, record.calls);
    const actions = element("div", { class: "actions" });
    if (record.content) actions.append(button("Copy", () => copyWith(actions.firstElementChild, record.content)));
    if (record.tokens.length) actions.append(this.tokensButton());
    actions.append(button(record.details.error ? "Try again" : "Regenerate", this.again, { class: "quiet again" }));
    if (record.details.error) this.foot.append(element("p", { class: "error", role: "alert" }, record.details.error));
    const { seed, first_ms: first, error } = record.details;
    if (seed !== undefined && (first !== undefined || !error)) this.foot.append(element("p", { class: "summary" }, this.summary()));
    this.foot.append(actions);
  }

  tokensButton() {
    const made = button("Tokens", () => {
      const shown = this.tokensPlace.hidden;
      if (shown && !this.tokensPlace.firstChild) this.tokensPlace.append(tokenView(this.record.tokens));
      this.tokensPlace.hidden = !shown;
      this.body.hidden = shown;
      made.setAttribute("aria-pressed", String(shown));
    }, { "aria-pressed": "false" });
    return made;
  }
}
