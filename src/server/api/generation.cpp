#include "server/api/generation.h"

#include <algorithm>

#include "base/check.h"
#include "core/sampling_fields.h"
#include "server/api/answer_constraint.h"

namespace nibble::api {
namespace {

constexpr std::size_t bytes_of_a_token = 8;  // its id and its text

// As the log names it.
std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
    case FinishReason::cut: return "length";
    case FinishReason::cancelled: return "abort";
    default: return "stop";
  }
}

// Behind what is there, as one piece with it where both are of one kind.
void append(std::vector<AnswerPiece>& pieces, AnswerPiece piece) {
  if (!pieces.empty() && pieces.back().part == piece.part && piece.part != AnswerPart::call) {
    pieces.back().text += piece.text;
  } else {
    pieces.push_back(std::move(piece));
  }
}

}  // namespace

Generation::Generation(std::shared_ptr<http::Exchange> exchange, PreparedRequest prepared,
                       std::unique_ptr<AnswerEncoder> encoder, const Tokenizer& tokenizer)
    : exchange_(std::move(exchange)),
      facts_(std::make_shared<http::AnswerFacts>(http::AnswerFacts{
          .model = encoder->head().model, .format = prepared.held_to, .finish_reason = "", .error = ""})),
      prepared_(std::move(prepared)),
      encoder_(std::move(encoder)),
      tokenizer_(tokenizer) {
  const std::size_t count = prepared_.prompts.size() * static_cast<std::size_t>(prepared_.request.n);
  for (std::size_t i = 0; i < count; ++i) {
    const PreparedPrompt& prompt = prompt_of(static_cast<int>(i));
    const auto shares = wants_content_tokens() ? AnswerReader::Shares::kept : AnswerReader::Shares::none;
    choices_.push_back({.reader = AnswerReader(tokenizer, prompt.answer, prepared_.stop, shares),
                        .part = {},
                        .records = {}});
    choices_.back().part.index = static_cast<int>(i);
    if (prepared_.request.return_token_ids) choices_.back().part.prompt_ids = prompt.ids;
  }
  for (const PreparedPrompt& prompt : prepared_.prompts)
    usage_.prompt_tokens += static_cast<int>(prompt.ids.size());
  open_ = choices();
  facts_->prompt_tokens = usage_.prompt_tokens;
  if (prepared_.prediction) usage_.prediction.emplace();
  facts_->completion_tokens = 0;
  exchange_->describe(facts_);
}

void Generation::begin() {
  if (!prepared_.request.stream) return;
  exchange_->begin_stream(event_stream_head());
  if (const std::string events = encoder_->begin(usage_); !events.empty()) exchange_->stream(events);
}

bool Generation::tells_prompts() const {
  return prepared_.request.return_token_ids || prepared_.request.prompt_logprobs >= 0 ||
         (prepared_.request.echo && prepared_.request.sampling.logprobs >= 0);
}

int Generation::prompt_top(int choice) const {
  const GenerationRequest& request = prepared_.request;
  const int echoed = request.echo ? request.sampling.logprobs : -1;
  return choice % request.n == 0 ? std::max(echoed, request.prompt_logprobs) : echoed;
}

bool Generation::wants_content_tokens() const {
  return prepared_.request.endpoint != Endpoint::completions && prepared_.request.sampling.logprobs >= 0;
}

const PreparedPrompt& Generation::prompt_of(int choice) const {
  return prepared_.prompts[static_cast<std::size_t>(choice / prepared_.request.n)];
}

std::vector<Request> Generation::engine_requests(RequestId first_id, std::uint64_t seed,
                                                 const ModelInfo& model) {
  const Sampling& asked = prepared_.request.sampling;
  std::vector<Request> requests;
  for (int i = 0; i < choices(); ++i) {
    Request request{.id = first_id + static_cast<RequestId>(i), .prompt = prompt_of(i).ids};
    request.cache_salt = prepared_.request.cache_salt;
    request.prediction = prepared_.prediction;
    SamplingParams& params = request.sampling;
    params.max_tokens = asked.max_tokens.value_or(model.max_model_len);
    params.temperature = sampling::temperature.as_float(asked.temperature.value_or(1.0));
    params.top_p = sampling::top_p.as_float(asked.top_p.value_or(1.0));
    params.min_p = sampling::min_p.as_float(asked.min_p.value_or(0.0));
    params.top_k = asked.top_k.value_or(0);
    params.repetition_penalty = sampling::repetition_penalty.as_float(asked.repetition_penalty.value_or(1.0));
    params.frequency_penalty = sampling::frequency_penalty.as_float(asked.frequency_penalty);
    params.presence_penalty = sampling::presence_penalty.as_float(asked.presence_penalty);
    params.logit_bias = asked.logit_bias;
    params.min_tokens = asked.min_tokens;
    params.seed = asked.seed ? static_cast<std::uint64_t>(*asked.seed) : seed;
    params.choice = static_cast<std::uint32_t>(i % prepared_.request.n);
    params.logprobs = asked.logprobs;
    params.constrained_logprobs = asked.constrained_logprobs;
    if (const int top = prompt_top(i); top >= 0) {
      params.prompt_logprobs = true;
      params.prompt_top_logprobs = top;
      params.prompt_ranks = prepared_.request.prompt_logprobs >= 0;
    }
    if (!asked.ignore_eos) params.stop_ids = model.eos_ids;
    const bool calls = prepared_.calls.place != BoundCalls::Place::none;
    if (prepared_.format || calls) {
      AnswerRules rules;
      if (prepared_.format) rules.format = nibble::start(prepared_.format, prepared_.vocabulary);
      if (calls) rules.calls = &prepared_.calls;
      // That they can hold in this prompt's answer was found when that was prepared.
      request.constraint =
          constrain_answer(tokenizer_, prompt_of(i).answer, model.eos_ids, std::move(rules)).value();
    }
    if (prepared_.limits) request.constraint = api::start(prepared_.limits);
    params.stop_ids.insert(params.stop_ids.end(), asked.stop_token_ids.begin(), asked.stop_token_ids.end());
    requests.push_back(std::move(request));
  }
  if (!tells_prompts()) {
    for (PreparedPrompt& prompt : prepared_.prompts) std::vector<TokenId>().swap(prompt.ids);
  }
  return requests;
}

Generation::After Generation::take(int number, const DeliveredEvent& event) {
  Choice& choice = choices_[static_cast<std::size_t>(number)];
  if (choice.ended || failed_) return After::nothing;
  if (event.finish == FinishReason::error || event.finish == FinishReason::timeout) {
    const bool late = event.finish == FinishReason::timeout;
    fail({.status = late ? 504 : 500,
          .type = "server_error",
          .message = event.error,
          .code = late ? "timeout" : ""});
    return After::cancel_all;
  }
  if (choice.generated == 0) {
    // The choices of a prompt share its tokens, which count once.
    if (number % prepared_.request.n == 0) usage_.cached_tokens += event.cached_tokens;
    facts_->cached_tokens = usage_.cached_tokens;
    if (prepared_.request.prompt_logprobs >= 0 && number % prepared_.request.n == 0)
      tell_prompt(number, event);
    if (prepared_.request.echo) echo(choice, prompt_of(number), event);
  }
  if (event.token >= 0) take_token(choice, event);
  if (choice.reader.stopped() || choice.calls_over) {
    end(choice, FinishReason::stop);
    return event.finish == FinishReason::none ? After::cancel : After::nothing;
  }
  if (event.finish != FinishReason::none) {
    end(choice, event.finish);
  } else if (prepared_.request.stream) {
    const ChoicePart& part = choice.part;
    const bool anything = !part.pieces.empty() || !part.tokens.empty() || !part.token_ids.empty();
    if (anything) send_chunk(choice);
  }
  return After::nothing;
}

void Generation::tell_prompt(int first, const DeliveredEvent& event) {
  if (event.prompt_logprobs.empty()) return;
  const auto prompt = std::make_shared<const PromptLogprobs>(
      PromptLogprobs{.ids = prompt_of(first).ids,
                     .logprobs = event.prompt_logprobs,
                     .top = event.prompt_top,
                     .ranks = event.prompt_ranks,
                     .count = static_cast<std::size_t>(prompt_top(first)),
                     .told = static_cast<std::size_t>(prepared_.request.prompt_logprobs)});
  for (int i = first; i < first + prepared_.request.n; ++i)
    choices_[static_cast<std::size_t>(i)].part.prompt = prompt;
}

void Generation::echo(Choice& choice, const PreparedPrompt& prompt, const DeliveredEvent& event) {
  if (!prompt.text.empty()) append(choice.part.pieces, {AnswerPart::answer, prompt.text});
  if (event.prompt_logprobs.empty() || prepared_.request.sampling.logprobs < 0) return;
  const std::ptrdiff_t told = prepared_.request.sampling.logprobs;
  const auto top = static_cast<std::size_t>(prompt_top(choice.part.index));
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    TokenRecord record{.token = prompt.ids[i], .shown = {}, .logprob = {}, .top = {}};
    if (i > 0) {
      record.logprob = event.prompt_logprobs[i];
      const auto row = event.prompt_top.begin() + static_cast<std::ptrdiff_t>(i * top);
      record.top.assign(row, row + told);
    }
    choice.part.tokens.push_back(std::move(record));
  }
}

void Generation::take_token(Choice& choice, const DeliveredEvent& event) {
  const GenerationRequest& request = prepared_.request;
  facts_->completion_tokens = ++usage_.completion_tokens;
  if (usage_.prediction) {
    usage_.prediction->accepted += event.predicted ? 1 : 0;
    usage_.prediction->rejected += event.failed_predictions;
  }
  ++choice.generated;
  if (request.sampling.logprobs >= 0) {
    TokenRecord record{.token = event.token, .shown = {}, .logprob = event.logprob, .top = event.top};
    std::erase_if(record.top, [](const TokenLogprob& entry) { return entry.id < 0; });
    if (wants_content_tokens()) {
      choice.records.push_back(std::move(record));
    } else {
      choice.part.tokens.push_back(std::move(record));
    }
  }
  if (request.return_token_ids) choice.part.token_ids.push_back(event.token);
  if (!request.stream) {
    // A whole answer is held until it ends, a stream's parts go as they come.
    const std::size_t known = request.sampling.logprobs < 0 ? 0 : sizeof(TokenRecord);
    prepared_.memory.grow(known + event.top.size() * sizeof(TokenLogprob) + bytes_of_a_token);
  }
  if (ends_unshown(event.finish)) return;  // the end token is counted and not shown
  const bool reasoned = choice.reader.reasoning();
  choice.reader.push(event.token, pieces_,
                     choice.generated > request.sampling.min_tokens ? AnswerReader::Stops::count
                                                                    : AnswerReader::Stops::pass);
  usage_.reasoning_tokens += reasoned && choice.reader.reasoning() ? 1 : 0;
  add_pieces(choice);
}

void Generation::take_call(Choice& choice, AnswerPiece& call) {
  choice.calls_over = choice.calls > 0 && !prepared_.request.tool_use.parallel;
  const int number = choice.calls++;
  if (!call.id.empty()) return;
  const std::string& id = encoder_->head().id;
  const bool anthropic = prepared_.request.endpoint == Endpoint::messages;
  call.id = (anthropic ? "toolu_" : "call_") + id.substr(id.find_first_of("-_") + 1) + "_" +
            std::to_string(choice.part.index) + "_" + std::to_string(number);
}

void Generation::add_pieces(Choice& choice) {
  for (AnswerPiece& piece : pieces_) {
    if (piece.part == AnswerPart::call) take_call(choice, piece);
    if (choice.calls_over) break;
    if (piece.part != AnswerPart::reasoning || prepared_.request.include_reasoning)
      append(choice.part.pieces, std::move(piece));
  }
  pieces_.clear();
  if (wants_content_tokens()) add_content_tokens(choice);
}

// A chat tells the log-probabilities of its content alone: not of reasoning, nor of what only steers.
void Generation::add_content_tokens(Choice& choice) {
  const auto take_first = [&choice] {
    TokenRecord record = std::move(choice.records.front());
    choice.records.pop_front();
    ++choice.first_record;
    return record;
  };
  shares_.clear();
  choice.reader.take_shares(shares_);
  for (AnswerShare& share : shares_) {
    while (choice.first_record < share.token) take_first();
    choice.part.tokens.push_back(take_first());
    choice.part.tokens.back().shown = std::move(share.bytes);
  }
  while (choice.first_record < choice.reader.first_open()) take_first();
}

void Generation::end(Choice& choice, FinishReason reason) {
  choice.reader.finish(pieces_);
  add_pieces(choice);
  choice.ended = true;
  --open_;
  choice.part.finish = reason;
  choice.part.stop_string = choice.reader.matched();
  facts_->finish_reason = reason_name(reason);
  if (prepared_.request.stream) send_chunk(choice);
  if (done()) finish();
}

void Generation::send_chunk(Choice& choice) {
  ChoicePart& part = choice.part;
  if (const std::string events = encoder_->part(part, usage_); !events.empty()) exchange_->stream(events);
  part.first = false;
  part.calls += part.new_calls();
  // By the tokens, not by the text: some of that may be held back.
  part.text_offset += spelled_characters(tokenizer_, part.tokens);
  part.pieces.clear();
  part.tokens.clear();
  part.token_ids.clear();
  part.prompt_ids = {};
}

void Generation::finish() {
  if (!prepared_.request.stream) {
    std::vector<ChoicePart> parts;
    for (Choice& choice : choices_) parts.push_back(std::move(choice.part));
    exchange_->answer({.body = encoder_->whole(parts, usage_)});
    return;
  }
  exchange_->stream(encoder_->end(usage_));
  exchange_->end_stream();
}

void Generation::fail(const ApiError& error) {
  failed_ = true;
  open_ = 0;
  facts_->failed_status = error.status;
  facts_->error = error.message;
  if (prepared_.request.stream) {
    exchange_->stream(encoder_->stream_failure(error));
    exchange_->break_stream();
  } else {
    http::Response response{.status = error.status, .body = encoder_->failure(error)};
    // What was too slow once, or gave no number, is not made better by being asked twice more, as clients do
    // after any 5xx.
    if (error.status == 500 || error.status == 504) response.fields.emplace_back("X-Should-Retry", "false");
    exchange_->answer(std::move(response));
  }
}

}  // namespace nibble::api
