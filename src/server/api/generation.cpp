#include "server/api/generation.h"

#include "base/check.h"

namespace nibble::api {
namespace {

AnswerForm form_of(const GenerationRequest& request) {
  return {.logprobs = request.sampling.logprobs >= 0, .token_ids = request.return_token_ids};
}

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "abort";
    default: return "stop";
  }
}

}  // namespace

Generation::Generation(std::shared_ptr<http::Exchange> exchange, PreparedRequest prepared, AnswerHead head,
                       const Tokenizer& tokenizer)
    : exchange_(std::move(exchange)),
      prepared_(std::move(prepared)),
      writer_(std::move(head), form_of(prepared_.request), tokenizer) {
  const int n = prepared_.request.n;
  for (std::size_t i = 0; i < prepared_.stop.size(); ++i) {
    const PreparedPrompt& prompt = prepared_.prompts[i / static_cast<std::size_t>(n)];
    choices_.push_back({.reader = AnswerReader(tokenizer, prompt.format, std::move(prepared_.stop[i])),
                        .all = {},
                        .pending = {}});
    choices_.back().all.index = choices_.back().pending.index = static_cast<int>(i);
  }
  for (const PreparedPrompt& prompt : prepared_.prompts)
    usage_.prompt_tokens += static_cast<int>(prompt.ids.size());
  open_ = choices();
}

std::vector<Request> Generation::engine_requests(RequestId first_id, std::uint64_t seed,
                                                 const ModelInfo& model) const {
  const Sampling& asked = prepared_.request.sampling;
  std::vector<Request> requests;
  for (int i = 0; i < choices(); ++i) {
    Request request{.id = first_id + static_cast<RequestId>(i),
                    .prompt = prepared_.prompts[static_cast<std::size_t>(i / prepared_.request.n)].ids};
    SamplingParams& sampling = request.sampling;
    sampling.max_tokens = asked.max_tokens.value_or(model.max_model_len);
    sampling.temperature = static_cast<float>(asked.temperature.value_or(1.0));
    sampling.top_p = static_cast<float>(asked.top_p.value_or(1.0));
    sampling.min_p = static_cast<float>(asked.min_p.value_or(0.0));
    sampling.top_k = asked.top_k.value_or(0);
    sampling.seed = asked.seed ? static_cast<std::uint64_t>(*asked.seed) : seed;
    sampling.choice = static_cast<std::uint32_t>(i % prepared_.request.n);
    sampling.logprobs = asked.logprobs;
    if (!asked.ignore_eos) sampling.stop_ids = model.eos_ids;
    sampling.stop_ids.insert(sampling.stop_ids.end(), asked.stop_token_ids.begin(),
                             asked.stop_token_ids.end());
    requests.push_back(std::move(request));
  }
  return requests;
}

Generation::After Generation::take(int number, const DeliveredEvent& event) {
  Choice& choice = choices_[static_cast<std::size_t>(number)];
  if (choice.ended || failed_) return After::nothing;
  if (event.finish == FinishReason::error || event.finish == FinishReason::timeout) {
    fail(event.error);
    return After::nothing;
  }
  if (event.token >= 0) {
    ++usage_.completion_tokens;
    if (prepared_.request.sampling.logprobs >= 0 || prepared_.request.return_token_ids) {
      TokenRecord record{.token = event.token, .logprob = event.logprob, .top = event.top};
      (prepared_.request.stream ? choice.pending : choice.all).tokens.push_back(std::move(record));
    }
    // The end token is counted and not shown.
    if (event.finish != FinishReason::stop) {
      pieces_.clear();
      choice.reader.push(event.token, pieces_);
      bool reasons = false;
      for (const AnswerPiece& piece : pieces_) {
        reasons |= piece.part == AnswerPart::reasoning;
        add_piece(choice, piece);
      }
      usage_.reasoning_tokens += reasons ? 1 : 0;
    }
  }
  if (choice.reader.stopped()) {
    end(choice, FinishReason::stop);
    return event.finish == FinishReason::none ? After::cancel : After::nothing;
  }
  if (event.finish != FinishReason::none) {
    end(choice, event.finish);
  } else if (prepared_.request.stream) {
    const ChoicePart& pending = choice.pending;
    if (!pending.text.empty() || !pending.reasoning.empty() || !pending.tokens.empty()) send_chunk(choice);
  }
  return After::nothing;
}

void Generation::add_piece(Choice& choice, const AnswerPiece& piece) {
  ChoicePart& part = prepared_.request.stream ? choice.pending : choice.all;
  (piece.part == AnswerPart::answer ? part.text : part.reasoning) += piece.text;
}

void Generation::end(Choice& choice, FinishReason reason) {
  pieces_.clear();
  choice.reader.finish(pieces_);
  for (const AnswerPiece& piece : pieces_) add_piece(choice, piece);
  choice.ended = true;
  --open_;
  choice.all.finish_reason = choice.pending.finish_reason = reason_name(reason);
  if (prepared_.request.stream) send_chunk(choice);
  if (done()) finish();
}

void Generation::send_chunk(Choice& choice) {
  exchange_->stream(sse(writer_.chunk(choice.pending, !choice.begun, prepared_.request.include_usage)));
  choice.begun = true;
  choice.pending.text_offset += characters(choice.pending.text);
  choice.pending.text.clear();
  choice.pending.reasoning.clear();
  choice.pending.tokens.clear();
}

void Generation::finish() {
  if (!prepared_.request.stream) {
    std::vector<ChoicePart> parts;
    for (Choice& choice : choices_) parts.push_back(std::move(choice.all));
    exchange_->answer({.body = writer_.whole(parts, usage_)});
    return;
  }
  if (prepared_.request.include_usage) exchange_->stream(sse(writer_.usage_chunk(usage_)));
  exchange_->stream(sse_done);
  exchange_->end_stream();
}

void Generation::fail(const std::string& message) {
  failed_ = true;
  open_ = 0;
  const ApiError error{.status = 500, .type = "server_error", .message = message};
  if (prepared_.request.stream) {
    exchange_->stream(sse(error.json()));
    exchange_->break_stream();
  } else {
    exchange_->answer({.status = error.status, .body = error.json()});
  }
}

}  // namespace nibble::api
