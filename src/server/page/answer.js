// One answer on the page: grows while it streams, then says how it went.
import { button, element } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { tokenView } from "./tokens.js";

const seconds = (ms) => `${(ms / 1000).toFixed(ms < 9950 ? 2 : 0)} s`;

const endings = { length: "cut off at the limit of tokens", abort: "ended by the server", stopped: "stopped" };

export class Answer {
  // `again`: what a press of Regenerate does. `around` is given each change of the page to carry out.
  constructor(seed, again, around) {
    this.around = around;
    this.text = "";
    this.tokens = [];  // with their probabilities, where they were asked for
    this.seed = seed;
    this.again = again;
    this.begun = performance.now();
    this.first = this.last = 0;  // when text came
    this.chunks = 0;
    this.usage = null;
    this.finish = "";
    this.drawing = 0;

    this.reasoningText = element("div", { class: "prose" });
    this.reasoningSummary = element("summary", {}, "Thinking");
    this.reasoning = element("details", { class: "reasoning", hidden: true }, this.reasoningSummary, this.reasoningText);
    this.body = element("div", { class: "prose" });
    this.tokensPlace = element("div", { hidden: true });
    this.foot = element("div", { class: "foot" });
    this.root = element("li", { class: "turn answer", "aria-busy": "true" }, element("h3", { class: "unseen" }, "Answer"),
      this.reasoning, this.body, this.tokensPlace, this.foot);
    this.bodyView = new MarkdownView(this.body);
    this.reasoningView = new MarkdownView(this.reasoningText);
    this.root.classList.add("pending");
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning } = choice.delta ?? {};
    if (choice.logprobs?.content) this.tokens.push(...choice.logprobs.content);
    if (choice.finish_reason) this.finish = choice.finish_reason;
    if (!content && !reasoning) return;
    this.last = performance.now();
    this.first ||= this.last;
    ++this.chunks;
    if (reasoning) {
      this.reasoning.hidden = false;
      this.reasoningView.append(reasoning);
    }
    if (content) {
      this.text += content;
      this.bodyView.append(content);
    }
    this.drawSoon();
  }

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
    this.root.classList.toggle("pending", this.drawn === 0);
    this.around(() => {
      this.bodyView.render();
      this.reasoningView.render();
    });
  }

  tokenCount() {
    return this.usage?.completion_tokens ?? (this.tokens.length || this.chunks);
  }

  summary() {
    const count = this.tokenCount();
    const parts = [`${count} token${count === 1 ? "" : "s"}`];
    // Of what came at once nobody knows the rate.
    if (this.last - this.first > 100 && count > 1) {
      parts.push(`${(((count - 1) * 1000) / (this.last - this.first)).toFixed(1)} a second`);
    }
    if (this.first) parts.push(`the first after ${seconds(this.first - this.begun)}`);
    if (this.usage?.prompt_tokens_details?.cached_tokens) {
      parts.push(`${this.usage.prompt_tokens_details.cached_tokens} of ${this.usage.prompt_tokens} prompt tokens reused`);
    }
    parts.push(`seed ${this.seed}`);
    if (endings[this.finish]) parts.push(endings[this.finish]);
    return parts.join(" · ");
  }

  // The answer is whole, was stopped (finish "stopped"), or `error` says why neither.
  end(error) {
    clearTimeout(this.drawing);
    cancelAnimationFrame(this.drawing);
    this.draw();
    this.root.classList.remove("pending");
    this.root.removeAttribute("aria-busy");
    if (this.usage?.completion_tokens_details?.reasoning_tokens) {
      this.reasoningSummary.textContent = `Thought for ${this.usage.completion_tokens_details.reasoning_tokens} tokens`;
    } else {
      this.reasoningSummary.textContent = "Thoughts";
    }
    const actions = element("div", { class: "actions" });
    if (this.text) actions.append(this.copyButton());
    if (this.tokens.length) actions.append(this.tokensButton());
    actions.append(button(error ? "Try again" : "Regenerate", this.again, { class: "quiet again" }));
    if (error) this.foot.append(element("p", { class: "error", role: "alert" }, error));
    if (this.first || !error) this.foot.append(element("p", { class: "summary" }, this.summary()));
    this.foot.append(actions);
  }

  copyButton() {
    const made = button("Copy", async () => {
      try {
        await navigator.clipboard.writeText(this.text);
        made.textContent = "Copied";
      } catch {
        made.textContent = "Copying is not allowed here";
      }
      setTimeout(() => (made.textContent = "Copy"), 1500);
    });
    return made;
  }

  tokensButton() {
    const made = button("Tokens", () => {
      const shown = this.tokensPlace.hidden;
      if (shown && !this.tokensPlace.firstChild) this.tokensPlace.append(tokenView(this.tokens));
      this.tokensPlace.hidden = !shown;
      this.body.hidden = shown;
      made.setAttribute("aria-pressed", String(shown));
    }, { "aria-pressed": "false" });
    return made;
  }
}
