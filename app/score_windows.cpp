#include "app/score_windows.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {

std::vector<ScoreWindow> score_windows(std::size_t tokens, std::size_t width) {
  NIBBLE_CHECK(width >= 2);
  std::vector<ScoreWindow> windows;
  std::size_t scored = 1;
  std::size_t begin = 0;
  while (scored < tokens) {
    const std::size_t end = std::min(begin + width, tokens);
    windows.push_back({begin, scored, end});
    scored = end;
    begin += width / 2;
  }
  return windows;
}

}  // namespace nibble
