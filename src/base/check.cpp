#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace nibble {

void check_failed(std::string_view condition, std::string_view message, SourceLocation where) {
  std::fprintf(stderr, "nibble: broken invariant at %s:%u in %s: %.*s%s%.*s\n", where.file, where.line,
               where.function, static_cast<int>(condition.size()), condition.data(),
               message.empty() ? "" : "; ", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace nibble
