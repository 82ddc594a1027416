// Any tokens as an answer, read as harmony, as thinking and as plain text, from every state that a prompt may
// leave: no piece is empty, a call is one of a function that is offered, arguments follow their call, and the
// shares of the tokens join to the answer.
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/answer_reader.h"
#include "text/thinking_test_util.h"

using namespace nibble;

namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer made =
      thinking_tokenizer(std::filesystem::temp_directory_path() / "nibble_answer_fuzz");
  return made;
}

constexpr std::array<std::string_view, 8> prompts = {
    "Once",
    "Once<think>",
    "Once</think>",
    "<|start|>user<|message|>Hi<|end|>",
    "<|start|>user<|message|>Hi<|end|><|start|>assistant",
    "<|start|>assistant<|channel|>analysis<|message|>",
    "<|start|>assistant<|channel|>final<|message|>a",
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"};

// What a fuzzer would hardly spell; a byte from 0xE0 on stands for one of them.
const std::vector<TokenId>& marks() {
  static const std::vector<TokenId> found = tokenizer().encode_trusted(
      "<|start|><|channel|><|message|><|end|><|constrain|><|return|><|call|><think></think>analysisfinal"
      "commentary to=functions.f json\n\n");
  return found;
}

std::shared_ptr<const OfferedTools> tools() {
  static const JsonDocument document =
      JsonDocument::parse(R"([{"type":"function","function":{"name":"f"}}])").value();
  static const auto offered = std::make_shared<const OfferedTools>(OfferedTools::of(document.root()));
  return offered;
}

void check(std::span<const AnswerPiece> pieces, std::span<const AnswerShare> shares, bool offers) {
  std::string answer, joined;
  bool called = false;
  for (const AnswerPiece& piece : pieces) {
    NIBBLE_CHECK(!piece.text.empty());
    if (piece.part == AnswerPart::answer) answer += piece.text;
    if (piece.part == AnswerPart::arguments) NIBBLE_CHECK(called);
    called = piece.part == AnswerPart::call || (called && piece.part == AnswerPart::arguments);
    if (piece.part == AnswerPart::call) NIBBLE_CHECK(offers && tools()->has(piece.text));
  }
  int last = -1;
  for (const AnswerShare& share : shares) {
    NIBBLE_CHECK(share.token > last);
    last = share.token;
    joined += share.bytes;
  }
  NIBBLE_CHECK(joined == answer);
}

}  // namespace

// The input's first byte says where the prompt leaves the answer, whether a function is offered, and what
// stops it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const unsigned how = data[0];
  AnswerStart start = answer_start(tokenizer(), tokenizer().encode_trusted(prompts[how % prompts.size()]));
  const bool offers = (how & 8) != 0;
  if (offers) start.tools = tools();
  start.calls = start.format == AnswerFormat::harmony ? CallForm::harmony : CallForm::json_in_tags;
  const std::vector<std::string> stops =
      (how & 16) != 0 ? std::vector<std::string>{"e s", "n"} : std::vector<std::string>();
  AnswerReader reader(tokenizer(), start, StopStrings::make(stops).value(), AnswerReader::Shares::kept);
  std::vector<AnswerPiece> pieces;
  std::vector<AnswerShare> shares;
  for (std::size_t at = 1; at < size && !reader.stopped(); ++at) {
    const unsigned byte = data[at];
    const TokenId token =
        byte >= 0xE0 ? marks()[(byte - 0xE0) % marks().size()]
        : at + 1 < size && byte >= 0xC0
            ? static_cast<TokenId>((byte - 0xC0u) * 256 + data[++at]) % tokenizer().vocabulary_size()
            : static_cast<TokenId>(byte);
    reader.push(token, pieces);
    reader.take_shares(shares);
  }
  reader.finish(pieces);
  reader.take_shares(shares);
  check(pieces, shares, offers);
  return 0;
}
