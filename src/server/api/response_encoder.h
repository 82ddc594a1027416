// Answers of /v1/responses: one response with items of reasoning and text, whole or as numbered events.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json_writer.h"
#include "server/api/answer_encoder.h"
#include "server/api/response_options.h"

namespace nibble::api {

// A response that has ended, as it may be asked for again.
struct EndedResponse {
  std::string json;
  Message answer;       // what the conversation goes on from
  bool failed = false;  // there is no answer to go on from
};

class ResponseEncoder final : public AnswerEncoder {
 public:
  using Keep = std::function<void(EndedResponse ended)>;

  // `keep` gets the response once it has ended, before its last event goes out; it may be empty. Clock and
  // tokenizer outlive the encoder.
  ResponseEncoder(AnswerHead head, const GenerationRequest& request, const Tokenizer& tokenizer,
                  const Clock& clock, Keep keep);

  std::string whole(std::span<const ChoicePart> choices, const Usage& usage) override;
  std::string begin(const Usage& usage) override;
  std::string part(const ChoicePart& part, const Usage& usage) override;
  std::string end(const Usage& usage) override;
  std::string stream_failure(const ApiError& error) override;
  std::string failure(const ApiError& error) override;

  // The response as it is before it has ended, or as it is left: "queued", "in_progress", "cancelled".
  std::string unfinished(std::string_view status) const;

 private:
  struct Item {
    AnswerPart part = AnswerPart::answer;
    std::string id;
    std::string text;                 // of a call: its arguments
    std::string name;                 // of a call: its function's
    std::string call_id;              // of a call
    std::vector<TokenRecord> tokens;  // of a message, with log-probabilities
  };
  // The members that only say what was asked.
  struct Asked {
    std::optional<std::string> instructions;
    std::optional<int> max_output_tokens;
    double temperature = 1, top_p = 1;
    int logprobs = -1;
    bool parallel_tool_calls = true;
    std::string effort;
    ResponseOptions options;
  };

  std::string response(std::string_view status, const Usage* usage, const ApiError* error) const;
  void add_item(JsonWriter& json, const Item& item, std::string_view status) const;
  void add_asked(JsonWriter& json) const;
  void add_text_part(JsonWriter& json, const Item& item) const;
  // An event with its number; `members` writes the rest.
  std::string event(std::string_view type, const std::function<void(JsonWriter& json)>& members);
  std::string state_event(std::string_view type, std::string_view status);
  std::string item_event(std::string_view type, std::string_view status);
  std::string place_event(std::string_view type, const std::function<void(JsonWriter& json)>& members);
  std::string open_item(AnswerPart part);
  std::string open_call(const AnswerPiece& call);
  std::string add_text(const std::string& text, std::span<const TokenRecord> tokens);
  std::string close_item();
  void give(const std::string& json, bool failed);
  std::string_view status() const;

  const Tokenizer& tokenizer_;
  const Clock& clock_;
  Asked asked_;
  Keep keep_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item is
  std::int64_t next_event_ = 0;
  bool told_progress_ = false;  // an event said that the answer is being made
  std::optional<FinishReason> finish_;
};

}  // namespace nibble::api
