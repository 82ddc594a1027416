// What a model answers in harmony, token by token: the state machine of openai-harmony's StreamableParser,
// with two differences. Nothing a model says is an error: where that parser would give up (no <|start|>, an
// unreadable header, a header that ends without <|message|>), the text surfaces as content of an assistant's
// message. And content shows no control token, wherever the model put
// it, unless that is asked for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/conversation.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace nibble {

// The control tokens of harmony in a tokenizer's vocabulary.
struct HarmonyTokens {
  TokenId start = -1;
  TokenId channel = -1;
  TokenId constrain = -1;
  TokenId message = -1;
  TokenId end = -1;
  TokenId return_ = -1;
  TokenId call = -1;

  // Nothing if one is missing: the tokenizer is not of a harmony model.
  static std::optional<HarmonyTokens> find(const Tokenizer& tokenizer);
  // Ends a message. Generation ends on return_ and call.
  bool ends_message(TokenId token) const { return token == end || token == return_ || token == call; }
};

struct HarmonyHeader {
  Role role = Role::assistant;
  std::string name;          // of a tool: "functions.get_weather"
  std::string recipient;     // empty: none
  std::string channel;       // empty: none
  std::string content_type;  // as spelled: "json" or "<|constrain|>json"; empty: none
};

// For whom a message is.
enum class HarmonyPart { answer, reasoning, tool_call };
HarmonyPart harmony_part(const HarmonyHeader& header);

struct HarmonyEvent {
  enum class Kind { begin, content, end };
  Kind kind = Kind::content;
  HarmonyHeader header;  // of begin
  std::string text;      // of content: more of the message that begun last
  TokenId token = -1;    // of end: the token that ended the message, or -1 when the stream ended
};

class HarmonyParser {
 public:
  // `role`: whose message the stream goes on with. The prompt ended in "<|start|>assistant", so the header is
  // open and its role known. Nothing: the stream begins with <|start|>.
  HarmonyParser(const Tokenizer& tokenizer, const HarmonyTokens& tokens,
                std::optional<Role> role = Role::assistant, HiddenTokens hidden = HiddenTokens::left_out);

  // Appends what the token brings about.
  void push(TokenId token, std::vector<HarmonyEvent>& events);
  // What was pushed so far is the end of the prompt, not of the answer: a header of which nothing but the
  // role is there has the prompt's word for it.
  void prompt_ended();
  bool in_header() const { return state_ == State::header; }
  bool in_content() const { return state_ == State::content; }
  // Bytes of content that wait for the rest of their character.
  std::size_t waiting() const { return decoder_.waiting(); }
  // The stream is over: appends what was held back and the end of a message that had none.
  void finish(std::vector<HarmonyEvent>& events);

 private:
  enum class State { between, header, content };

  void begin(HarmonyHeader header, std::string_view content, std::vector<HarmonyEvent>& events);
  void end(TokenId token, std::vector<HarmonyEvent>& events);
  void header_is_complete(std::vector<HarmonyEvent>& events);
  void header_is_cut_off(TokenId token, std::vector<HarmonyEvent>& events);
  void take_content(TokenId token, std::vector<HarmonyEvent>& events);
  std::string without_controls(std::string text) const;

  Tokenizer tokenizer_;
  HarmonyTokens tokens_;
  State state_;
  std::optional<Role> role_;              // of the open header, where the prompt gave it
  std::string header_;                    // its bytes so far
  std::vector<TokenId> header_controls_;  // the control tokens among them
  StreamDecoder decoder_;
};

}  // namespace nibble
