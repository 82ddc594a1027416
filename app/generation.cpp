#include "app/generation.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// One input on its way. Its request's id is its index.
struct Running {
  AnswerReader reader;
  GenerationResult result;
  Clock::time_point first_token;
  bool finished = false;
};

class GenerationRun {
 public:
  GenerationRun(Engine& engine, std::span<const GenerationInput> inputs, const GenerationCallbacks& callbacks)
      : engine_(engine), inputs_(inputs), callbacks_(callbacks) {}

  Status submit(const Tokenizer& tokenizer, std::span<const std::string> names) {
    start_ = Clock::now();
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      Status status = submit_one(tokenizer, i);
      if (status.ok()) continue;
      cancel_all();
      return i < names.size() && !names[i].empty() ? status.with_context(names[i]) : status;
    }
    return {};
  }

  Status run() {
    std::int64_t prefilled = 0;
    std::int64_t prompt_tokens = 0;
    for (const GenerationInput& input : inputs_) prompt_tokens += static_cast<std::int64_t>(input.ids.size());
    std::vector<Event> events;
    while (!engine_.idle()) {
      if (callbacks_.interrupted && callbacks_.interrupted()) cancel_all();
      events.clear();
      NIBBLE_ASSIGN(const StepTimes times, engine_.step(events));
      prefilled += times.prefill_tokens;
      if (callbacks_.prefill && times.prefill_tokens > 0) callbacks_.prefill(prefilled, prompt_tokens);
      for (Event& event : events) take(event);
    }
    return {};
  }

  std::vector<GenerationResult> results() && {
    std::vector<GenerationResult> results;
    for (Running& running : running_) results.push_back(std::move(running.result));
    return results;
  }

 private:
  Status submit_one(const Tokenizer& tokenizer, std::size_t i) {
    const GenerationInput& input = inputs_[i];
    NIBBLE_ASSIGN(StopStrings stop, StopStrings::make(input.params.stop));
    Request request{.id = i, .prompt = input.ids, .sampling = input.params.sampling};
    request.constraint = input.constraint;
    if (!input.params.ignore_eos) {
      const std::vector<TokenId>& ends = engine_.model().eos_ids;
      request.sampling.stop_ids.insert(request.sampling.stop_ids.end(), ends.begin(), ends.end());
    }
    running_.push_back({.reader = AnswerReader(tokenizer, input.answer, std::move(stop)),
                        .result = {},
                        .first_token = start_});
    running_.back().result.timings.prefill_tokens = static_cast<int>(input.ids.size());
    return engine_.submit(std::move(request));
  }

  void cancel_all() {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!running_[i].finished) engine_.cancel(i);
    }
  }

  void take(Event& event) {
    Running& running = running_[event.request];
    if (running.finished) return;  // a stop string ended it before the engine knew
    if (!event.prompt_logprobs.empty()) running.result.prompt_logprobs = std::move(event.prompt_logprobs);
    if (event.token >= 0) take_token(event, running);
    if (running.reader.stopped()) {
      engine_.cancel(event.request);
      finish(event.request, FinishReason::stop);
    } else if (event.finish != FinishReason::none) {
      running.result.error = std::move(event.error);
      finish(event.request, event.finish);
    }
  }

  void take_token(Event& event, Running& running) {
    GenerationResult& result = running.result;
    const auto now = Clock::now();
    if (result.token_ids.empty()) {
      running.first_token = now;
      result.timings.prefill_s = seconds_between(start_, now);
    } else {
      ++result.timings.decode_tokens;
    }
    result.timings.decode_s = seconds_between(running.first_token, now);
    result.token_ids.push_back(event.token);
    if (inputs_[event.request].params.sampling.logprobs >= 0) {
      result.logprobs.push_back(event.logprob);
      result.top.emplace_back(event.top.begin(), event.top.end());
    }
    // The end token is counted and not shown.
    if (ends_unshown(event.finish)) return;
    pieces_.clear();
    const bool may_stop =
        static_cast<int>(result.token_ids.size()) > inputs_[event.request].params.sampling.min_tokens;
    running.reader.push(event.token, pieces_,
                        may_stop ? AnswerReader::Stops::count : AnswerReader::Stops::pass);
    show(event.request);
  }

  void finish(std::size_t i, FinishReason reason) {
    Running& running = running_[i];
    pieces_.clear();
    running.reader.finish(pieces_);
    show(i);
    running.finished = true;
    running.result.finish = reason;
    if (running.result.token_ids.empty())
      running.result.timings.prefill_s = seconds_between(start_, Clock::now());
    if (callbacks_.finished) callbacks_.finished(i, running.result);
  }

  void show(std::size_t i) {
    for (const AnswerPiece& piece : pieces_) {
      GenerationResult& result = running_[i].result;
      switch (piece.part) {
        case AnswerPart::answer: result.text += piece.text; break;
        case AnswerPart::reasoning: result.reasoning += piece.text; break;
        case AnswerPart::call:
          result.calls.push_back({.id = piece.id, .name = piece.text, .arguments = {}});
          break;
        case AnswerPart::arguments: result.calls.back().arguments += piece.text; break;
      }
      if (callbacks_.piece) callbacks_.piece(i, piece);
    }
  }

  Engine& engine_;
  std::span<const GenerationInput> inputs_;
  const GenerationCallbacks& callbacks_;
  std::vector<Running> running_;
  std::vector<AnswerPiece> pieces_;
  Clock::time_point start_;
};

}  // namespace

Result<std::vector<GenerationResult>> run_generation(Engine& engine, const Tokenizer& tokenizer,
                                                     std::span<const GenerationInput> inputs,
                                                     std::span<const std::string> input_names,
                                                     const GenerationCallbacks& callbacks) {
  GenerationRun run(engine, inputs, callbacks);
  NIBBLE_RETURN_IF_ERROR(run.submit(tokenizer, input_names));
  NIBBLE_RETURN_IF_ERROR(run.run());
  return std::move(run).results();
}

}  // namespace nibble
