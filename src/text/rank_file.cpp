#include "text/rank_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace nibble {
namespace {

constexpr std::array<std::int8_t, 256> make_base64() {
  std::array<std::int8_t, 256> values{};
  for (std::int8_t& value : values) value = -1;
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
  }
  return values;
}
constexpr std::array<std::int8_t, 256> kBase64 = make_base64();

// Appends the decoded bytes; false if `digits` is not padded base64.
bool append_base64(std::string_view digits, std::vector<char>& bytes) {
  if (digits.empty() || digits.size() % 4 != 0) return false;
  std::size_t padding = 0;
  while (padding < 2 && digits[digits.size() - 1 - padding] == '=') ++padding;
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool pad = i >= digits.size() - padding;
    const int value = pad ? 0 : kBase64[static_cast<unsigned char>(digits[i])];
    if (value < 0) return false;
    word = word << 6 | static_cast<std::uint32_t>(value);
    if (i % 4 != 3) continue;
    const std::size_t count = i + 1 == digits.size() ? 3 - padding : 3;
    for (std::size_t k = 0; k < count; ++k) bytes.push_back(static_cast<char>(word >> (16 - 8 * k) & 0xFF));
    word = 0;
  }
  return true;
}

// Every cut of every token is looked at. The longest token of o200k has 128 bytes.
constexpr std::size_t kMaxTokenBytes = 512;

Status two_ranks_of_one_token(const Vocabulary& vocabulary, const std::vector<TokenId>& tokens) {
  TokenFinder finder(vocabulary, tokens.size());
  for (const TokenId token : tokens) {
    if (const TokenId other = finder.insert(token); other != token) {
      return broken_model("ranks " + std::to_string(other) + " and " + std::to_string(token) +
                          " are of the same token");
    }
  }
  NIBBLE_CHECK(false, "some token is there twice");
  return {};
}

}  // namespace

Result<RankFile> read_rank_file(std::string_view text) {
  RankFile file;
  file.bytes.reserve(text.size());  // so that views into it hold
  std::size_t line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const auto refuse = [line_number](std::string_view why) {
      return broken_model("line " + std::to_string(line_number) + " " + std::string(why));
    };
    const std::size_t line_end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, line_end);
    text.remove_prefix(std::min(line_end + 1, text.size()));
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return refuse("is not a base64 token and its rank");
    const std::size_t begin = file.bytes.size();
    if (!append_base64(line.substr(0, space), file.bytes)) return refuse("does not begin with base64");
    const std::string_view token = std::string_view(file.bytes.data(), file.bytes.size()).substr(begin);
    if (token.size() > kMaxTokenBytes) {
      return refuse("has a token of more than " + std::to_string(kMaxTokenBytes) + " bytes");
    }
    std::int64_t rank = 0;
    const auto [end, error] = std::from_chars(line.data() + space + 1, line.data() + line.size(), rank);
    if (error != std::errc() || end != line.data() + line.size()) return refuse("does not end with a rank");
    if (Status status = file.builder.add(rank, token); !status.ok()) {
      return refuse("is refused: " + status.message());
    }
    file.plain.push_back(static_cast<TokenId>(rank));
  }
  return file;
}

Result<TokenizerParts> parts_of_ranks(RankFile file, std::vector<ControlToken> controls,
                                      std::string_view pattern, std::string_view whose) {
  TokenizerParts parts;
  parts.controls = std::move(controls);
  for (const ControlToken& control : parts.controls) {
    if (Status status = file.builder.add(control.id, control.spelling); !status.ok()) {
      return broken_model("these are not the ranks of " + std::string(whose) + ": its control token " +
                          control.spelling + " has the id of a rank");
    }
  }
  NIBBLE_ASSIGN(parts.vocabulary, file.builder.finish());

  TokenFinder finder(*parts.vocabulary, file.plain);
  if (finder.size() != file.plain.size()) return two_ranks_of_one_token(*parts.vocabulary, file.plain);
  NIBBLE_ASSIGN(parts.bpe.bytes, byte_tokens(finder));
  parts.bpe.merges = merges_of_ranks(*parts.vocabulary, file.plain, finder);
  parts.bpe.plain = std::move(file.plain);
  parts.bpe.finder = std::move(finder);
  parts.bpe.whole_piece = BpeModel::WholePiece::always;
  NIBBLE_ASSIGN(SplitStep step, SplitStep::pattern(pattern, SplitBehavior::isolated, false));
  parts.pre_tokenizer = PreTokenizer({std::move(step)});
  return parts;
}

}  // namespace nibble
