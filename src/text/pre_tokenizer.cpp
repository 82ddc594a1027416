#include "text/pre_tokenizer.h"

#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace nibble {

Result<SplitStep> SplitStep::pattern(std::string_view pattern, SplitBehavior behavior, bool invert) {
  if (const SplitScanner* scanner = find_split_scanner(pattern)) {
    return SplitStep(scanner->match_at, behavior, invert);
  }
  NIBBLE_ASSIGN(Regex regex, Regex::compile(pattern));
  return SplitStep(std::move(regex), behavior, invert);
}

SplitStep SplitStep::literal(std::string text, SplitBehavior behavior, bool invert) {
  NIBBLE_CHECK(!text.empty());
  return SplitStep(std::move(text), behavior, invert);
}

PreTokenizer::Cutter::Cutter(const PreTokenizer& pre_tokenizer) : steps_(&pre_tokenizer.steps_) {
  for (const SplitStep& step : *steps_) {
    const auto* regex = std::get_if<Regex>(&step.matches_);
    matchers_.push_back(regex ? std::make_optional<Regex::Matcher>(*regex) : std::nullopt);
  }
}

PreTokenizer::Cutter::Segment PreTokenizer::Cutter::find(std::size_t step, std::string_view text,
                                                         std::size_t at) {
  const auto& matches = (*steps_)[step].matches_;
  if (const auto* match_at = std::get_if<MatchAt>(&matches)) {
    while (at < text.size()) {
      if (const std::size_t end = (*match_at)(text, at); end != at) return {at, end, true};
      at += decode_valid_utf8(text.data() + at).length;
    }
    return {at, at, true};
  }
  if (const auto* literal = std::get_if<std::string>(&matches)) {
    const std::size_t begin = text.find(*literal, at);
    if (begin == std::string_view::npos) return {text.size(), text.size(), true};
    return {begin, begin + literal->size(), true};
  }
  const Regex::Matcher::Match match = matchers_[step]->find(text, at);
  return {match.begin, match.end, true};
}

std::optional<PreTokenizer::Cutter::Segment> PreTokenizer::Cutter::Joiner::add(Segment segment) {
  if (behavior == SplitBehavior::isolated) return segment;
  if (behavior == SplitBehavior::removed) return segment.match ? std::nullopt : std::make_optional(segment);
  bool join = false;
  switch (behavior) {
    case SplitBehavior::contiguous: join = segment.match == previous_match; break;
    case SplitBehavior::merged_with_previous: join = segment.match && !previous_match; break;
    case SplitBehavior::merged_with_next: join = !segment.match && previous_match; break;
    case SplitBehavior::isolated:
    case SplitBehavior::removed: break;
  }
  previous_match = segment.match;
  if (join && held) {
    held->end = segment.end;
    return std::nullopt;
  }
  return std::exchange(held, segment);
}

}  // namespace nibble
