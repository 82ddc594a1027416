// Any text as an answer with calls, in every form: what is told is the same however the text is cut, a call
// is one of a function that is offered, and its arguments are a JSON object.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/call_reader.h"

using namespace nibble;

namespace {

constexpr std::array forms = {CallForm::json_in_tags, CallForm::xml_in_tags,     CallForm::arguments_in_tags,
                              CallForm::deepseek,     CallForm::deepseek_fenced, CallForm::kimi,
                              CallForm::bare_json};

std::shared_ptr<const OfferedTools> tools() {
  const JsonDocument document =
      JsonDocument::parse(R"([{"type":"function","function":{"name":"f","parameters":
    {"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"},"c":{"type":["string","null"]}}}}},
    {"type":"function","function":{"name":"g"}}])")
          .value();
  return std::make_shared<const OfferedTools>(OfferedTools::of(document.root()));
}

// Bytes that no UTF-8 has stand for the form's marks, which a fuzzer would hardly spell.
std::string with_marks(std::string_view input, CallForm form) {
  const CallMarks marks = call_marks(form);
  const std::array<std::string_view, 8> spelled = {marks.open,          marks.close,     marks.section_open,
                                                   marks.section_close, marks.inside[0], marks.inside[1],
                                                   marks.inside[2],     marks.inside[3]};
  std::string text;
  for (const char byte : input) {
    const auto value = static_cast<unsigned char>(byte);
    if (value >= 0xF8) {
      text += spelled[value - 0xF8];
    } else {
      text += byte;
    }
  }
  return text;
}

struct Told {
  std::string answer;
  std::vector<std::string> names, arguments;
  bool operator==(const Told&) const = default;
};

Told read(CallForm form, CallBinding binding, std::string_view text, std::size_t step) {
  static const std::shared_ptr<const OfferedTools> offered = tools();
  CallReader reader(form, offered, binding);
  std::vector<AnswerPiece> pieces;
  for (std::size_t at = 0; at < text.size(); at += step) reader.push(text.substr(at, step), pieces);
  reader.finish(pieces);
  Told told;
  for (const AnswerPiece& piece : pieces) {
    NIBBLE_CHECK(piece.part != AnswerPart::reasoning);
    if (piece.part == AnswerPart::answer) told.answer += piece.text;
    if (piece.part == AnswerPart::call) {
      NIBBLE_CHECK(offered->has(piece.text));
      told.names.push_back(piece.text);
      told.arguments.emplace_back();
    }
    if (piece.part == AnswerPart::arguments) {
      NIBBLE_CHECK(!told.arguments.empty());
      told.arguments.back() += piece.text;
    }
  }
  NIBBLE_CHECK(told.answer.size() <= text.size());
  return told;
}

}  // namespace

// The input's first byte says which form, who wrote the calls, and how the text is cut.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const CallForm form = forms[data[0] % forms.size()];
  const auto binding = static_cast<CallBinding>(data[0] / forms.size() % 3);
  const std::size_t step = 1 + data[0] / (3 * forms.size());
  const std::string text = with_marks({reinterpret_cast<const char*>(data) + 1, size - 1}, form);
  const Told whole = read(form, binding, text, text.size() + 1);
  NIBBLE_CHECK(read(form, binding, text, step) == whole);
  if (binding != CallBinding::free) return 0;
  for (const std::string& arguments : whole.arguments) {
    const auto document = JsonDocument::parse(arguments);
    NIBBLE_CHECK(document.ok() && document->root().is_object());
  }
  return 0;
}
