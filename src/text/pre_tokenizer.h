// Cuts text into the pieces that byte-pair encoding never crosses: the Split steps of a tokenizer.json, each
// applied to the pieces of the one before.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "text/regex.h"
#include "text/split_scanners.h"

namespace nibble {

// What becomes of a match and of the text between matches; the names are those of tokenizer.json.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class SplitStep {
 public:
  // A pattern with a scanner of its own is matched by that, any other by Regex.
  static Result<SplitStep> pattern(std::string_view pattern, SplitBehavior behavior, bool invert);
  static SplitStep literal(std::string text, SplitBehavior behavior, bool invert);  // not empty

 private:
  friend class PreTokenizer;
  SplitStep(std::variant<MatchAt, Regex, std::string> matches, SplitBehavior behavior, bool invert)
      : matches_(std::move(matches)), behavior_(behavior), invert_(invert) {}
  std::variant<MatchAt, Regex, std::string> matches_;
  SplitBehavior behavior_;
  bool invert_;  // swaps matches and what lies between them
};

class PreTokenizer {
 public:
  static constexpr std::size_t kMaxSteps = 16;

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<SplitStep> steps) : steps_(std::move(steps)) {}

  // What one thread needs to cut texts; the PreTokenizer must outlive it.
  class Cutter {
   public:
    explicit Cutter(const PreTokenizer& pre_tokenizer);
    // Calls sink(std::string_view) for each piece of valid UTF-8 text in order; none is empty.
    template <class Sink>
    void cut(std::string_view text, Sink&& sink) {
      cut_from(0, text, sink);
    }

   private:
    struct Segment {
      std::size_t begin, end;
      bool match;
    };
    // The next match at or behind `at`; empty at the end of the text if there is none.
    Segment find(std::size_t step, std::string_view text, std::size_t at);

    // Recursion is as deep as there are steps.
    template <class Sink>
    void cut_from(std::size_t step, std::string_view text, Sink& sink) {
      if (step == steps_->size()) {
        if (!text.empty()) sink(text);
        return;
      }
      Joiner joiner{(*steps_)[step].behavior_, {}};
      const auto pass_on = [&](Segment segment) {
        cut_from(step + 1, text.substr(segment.begin, segment.end - segment.begin), sink);
      };
      const auto take = [&](Segment segment) {
        segment.match ^= (*steps_)[step].invert_;
        if (const std::optional<Segment> ready = joiner.add(segment)) pass_on(*ready);
      };
      for (std::size_t at = 0; at < text.size();) {
        const Segment next = find(step, text, at);
        if (next.begin > at) take({at, next.begin, false});
        if (next.end > next.begin) take(next);
        at = next.end;
      }
      if (joiner.held) pass_on(*joiner.held);
    }

    // Joins neighbouring segments as the behaviour says.
    struct Joiner {
      SplitBehavior behavior;
      std::optional<Segment> held;
      bool previous_match = false;
      // Takes the next segment and gives the one that nothing can join any more.
      std::optional<Segment> add(Segment segment);
    };

    const std::vector<SplitStep>* steps_;
    std::vector<std::optional<Regex::Matcher>> matchers_;  // [steps]
  };

 private:
  std::vector<SplitStep> steps_;
};

}  // namespace nibble
