// How a text longer than the context is scored.
#pragma once

#include <cstddef>
#include <vector>

namespace nibble {

// Tokens [begin, end) go through the model together; the log-probabilities of [scored, end) count.
struct ScoreWindow {
  std::size_t begin = 0;
  std::size_t scored = 0;
  std::size_t end = 0;
};

// Windows of at most `width` (at least 2) tokens, each beginning half a window after the one before, so that
// every token but the text's first is scored exactly once and, past the first window, with at least half a
// window of text before it.
std::vector<ScoreWindow> score_windows(std::size_t tokens, std::size_t width);

}  // namespace nibble
