// Hand-written matchers for the split patterns of the models we serve, so that splitting text costs a few
// table look-ups a character instead of a backtracking regular expression. Each is chosen by the exact text
// of the pattern and must match what the pattern matches (split_scanners_test.cpp compares with PCRE2).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace nibble {

// Where the pattern's match that begins exactly at `at` ends; `at` itself if none does. `text` is valid UTF-8
// and `at` < text.size() begins a character.
using MatchAt = std::size_t (*)(std::string_view text, std::size_t at);

struct SplitScanner {
  std::string_view name;
  std::string_view pattern;  // as tokenizer.json spells it
  MatchAt match_at;
};

// The scanner of this exact pattern, or nullptr.
const SplitScanner* find_split_scanner(std::string_view pattern);
std::span<const SplitScanner> split_scanners();

inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen2, Qwen3 and Qwen3-Next.
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
// Qwen3.5 and later: marks belong to words.
inline constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
// cl100k_base as Llama 3 and GLM-4.5 ship it.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
// DeepSeek-V3's three, applied one after the other. The last has real line breaks in its sets.
inline constexpr std::string_view kThreeDigitsPattern = R"(\p{N}{1,3})";
inline constexpr std::string_view kCjkPattern = "[一-龥぀-ゟ゠-ヿ]+";
inline constexpr std::string_view kDeepSeekWordPattern =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
// Kimi's, which its tokenizer's code spells: o200k's but for runs of Han and for slashes behind signs.
inline constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// What a Digits pre-tokenizer takes out, one by one or run by run.
inline constexpr std::string_view kOneNumberPattern = R"(\p{N})";
inline constexpr std::string_view kNumbersPattern = R"(\p{N}+)";
// GPT-2's, which ByteLevel pre-tokenizers apply when use_regex is on.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace nibble
