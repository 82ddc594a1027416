// One HTTP request's generations: tokens in as the engine gives them, the answer out as the client wants it.
// Lives on the I/O thread.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "engine/engine_thread.h"
#include "grammar/grammar.h"
#include "server/api/answer_encoder.h"
#include "server/api/api_error.h"
#include "server/api/bound_calls.h"
#include "server/api/generation_request.h"
#include "server/api/request_memory.h"
#include "server/api/token_limits.h"
#include "server/http/exchange.h"
#include "text/answer_reader.h"

namespace nibble::api {

// A prompt as token ids, and how its answer reads.
struct PreparedPrompt {
  std::vector<TokenId> ids;
  AnswerStart answer;
  std::string text;  // for an echo
};

// What is asked, after everything that takes time has been done to it.
struct PreparedRequest {
  GenerationRequest request;
  std::vector<PreparedPrompt> prompts;
  StopStrings stop;
  std::shared_ptr<const Grammar> format;                // null: any text
  std::shared_ptr<const GrammarVocabulary> vocabulary;  // with a format
  BoundCalls calls;
  std::string held_to;                                     // kinds of constraints, parted by commas
  std::shared_ptr<const TokenLimits> limits;               // null: none
  std::shared_ptr<const std::vector<TokenId>> prediction;  // null: none
  RequestMemory::Share memory;                             // what all of this holds, and what comes of it
};

class Generation {
 public:
  Generation(std::shared_ptr<http::Exchange> exchange, PreparedRequest prepared,
             std::unique_ptr<AnswerEncoder> encoder, const Tokenizer& tokenizer);

  // The engine has it: opens the stream, if it is one.
  void begin();

  // The engine's requests, one a choice, with ids from `first_id` on; and the seed for those that named none.
  // Asked for once: prompts that the answer does not tell are the engine's from then on.
  std::vector<Request> engine_requests(RequestId first_id, std::uint64_t seed, const ModelInfo& model);
  int choices() const { return static_cast<int>(choices_.size()); }

  // What the engine need not go on with: a choice that a stop string ended before the engine knew, or all of
  // them, because one failed.
  enum class After : std::uint8_t { nothing, cancel, cancel_all };
  After take(int choice, const DeliveredEvent& event);
  // Ends the answer with an error, whatever is missing of it.
  void fail(const ApiError& error);
  // The engine gave the first token at this time.
  void note_first_token(std::chrono::nanoseconds now) {
    if (!facts_->first_token) facts_->first_token = now;
  }
  // Whether every choice has ended and the answer is complete.
  bool done() const { return open_ == 0; }

 private:
  struct Choice {
    AnswerReader reader;
    ChoicePart part;  // all of a whole answer; of a stream, what came since its last chunk
    // Of a chat with log-probabilities: the tokens that may yet turn out to be of the content, from the
    // answer's token number `first_record` on.
    std::deque<TokenRecord> records;
    int first_record = 0;
    int generated = 0;        // tokens
    int calls = 0;            // of tools
    bool calls_over = false;  // a second one began, and one was asked for
    bool ended = false;
  };

  bool wants_content_tokens() const;
  bool tells_prompts() const;
  // Likeliest tokens that the engine is asked for beside each of a prompt's; -1: nothing of the prompt.
  int prompt_top(int choice) const;
  const PreparedPrompt& prompt_of(int choice) const;
  // The first choice of a prompt tells it for the others.
  void tell_prompt(int first, const DeliveredEvent& event);
  void echo(Choice& choice, const PreparedPrompt& prompt, const DeliveredEvent& event);
  void take_token(Choice& choice, const DeliveredEvent& event);
  void add_pieces(Choice& choice);
  void take_call(Choice& choice, AnswerPiece& call);
  void add_content_tokens(Choice& choice);
  void end(Choice& choice, FinishReason reason);
  void send_chunk(Choice& choice);
  void finish();

  std::shared_ptr<http::Exchange> exchange_;
  std::shared_ptr<http::AnswerFacts> facts_;  // for the log
  PreparedRequest prepared_;
  std::unique_ptr<AnswerEncoder> encoder_;
  const Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  std::vector<AnswerPiece> pieces_;  // what the last token completed
  std::vector<AnswerShare> shares_;
  Usage usage_;
  int open_;
  bool failed_ = false;
};

}  // namespace nibble::api
