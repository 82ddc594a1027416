// Any bytes as a tokenizer.json: refused with a sentence, or a tokenizer that encodes and decodes any text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

using namespace nibble;

// The input is a file, and behind the first zero byte a text to encode with it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = input.find('\0');
  const std::string_view text =
      cut == std::string_view::npos ? "The fox's 12 \u00e9 <|end|>" : input.substr(cut + 1);
  Result<TokenizerParts> parts = read_tokenizer_json(std::string(input.substr(0, cut)));
  if (!parts.ok()) {
    NIBBLE_CHECK(!parts.status().message().empty());
    return 0;
  }
  const Tokenizer tokenizer = Tokenizer::from_parts(std::move(parts).value());
  const std::string decoded = tokenizer.decode(tokenizer.encode(text));
  NIBBLE_CHECK(is_valid_utf8(decoded));
  for (const TokenId id : tokenizer.encode(text)) NIBBLE_CHECK(!tokenizer.is_control(id));
  (void)tokenizer.encode_trusted(text);
  return 0;
}
