// Rank files of tiktoken, and the two encodings that the models we serve use them with.
#include <cstdint>
#include <iterator>
#include <string>

#include "base/quote.h"
#include "text/rank_file.h"
#include "text/split_scanners.h"

namespace nibble {
namespace {

struct NamedControl {
  TokenId id;
  std::string_view spelling;
};
constexpr NamedControl kO200kBase[] = {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
constexpr NamedControl kO200kHarmony[] = {{199998, "<|startoftext|>"}, {199999, "<|endoftext|>"},
                                          {200002, "<|return|>"},      {200003, "<|constrain|>"},
                                          {200005, "<|channel|>"},     {200006, "<|start|>"},
                                          {200007, "<|end|>"},         {200008, "<|message|>"},
                                          {200012, "<|call|>"},        {200018, "<|endofprompt|>"}};
constexpr TokenId kHarmonyFirstReserved = 200000;
constexpr TokenId kHarmonyLastReserved = 201087;

Result<std::vector<ControlToken>> controls_of(std::string_view encoding) {
  std::vector<ControlToken> controls;
  if (encoding == "o200k_base") {
    for (const NamedControl& named : kO200kBase) controls.push_back({named.id, std::string(named.spelling)});
    return controls;
  }
  if (encoding == "o200k_harmony") {
    std::size_t next = 0;
    for (TokenId id = kO200kHarmony[0].id; id <= kHarmonyLastReserved; ++id) {
      if (next < std::size(kO200kHarmony) && kO200kHarmony[next].id == id) {
        controls.push_back({id, std::string(kO200kHarmony[next++].spelling)});
      } else if (id >= kHarmonyFirstReserved) {
        controls.push_back({id, "<|reserved_" + std::to_string(id) + "|>"});
      }
    }
    return controls;
  }
  return invalid_argument("a rank file needs --encoding o200k_base or o200k_harmony" +
                          (encoding.empty() ? std::string() : ", not " + quote(encoding)));
}

}  // namespace

Result<TokenizerParts> read_tiktoken(std::string_view text, std::string_view encoding) {
  NIBBLE_ASSIGN(std::vector<ControlToken> controls, controls_of(encoding));
  NIBBLE_ASSIGN(RankFile file, read_rank_file(text));
  return parts_of_ranks(std::move(file), std::move(controls), kO200kPattern, encoding);
}

}  // namespace nibble
