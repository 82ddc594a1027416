// A regular expression over valid UTF-8, for split patterns that have no scanner of their own. PCRE2 with its
// just-in-time compiler and limits on time and memory, so that neither a pattern nor a text can run away.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace nibble {

class Regex {
 public:
  // Compiles `pattern` with Unicode properties; ^ and $ match at line breaks, as the Oniguruma library that
  // tokenizer.json files are written for does. A pattern that can match the empty text, or that uses syntax
  // which means something else there (\h, &&), is refused.
  static Result<Regex> compile(std::string_view pattern);

  // What one thread needs for matching.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) = delete;

    struct Match {
      std::size_t begin;
      std::size_t end;
      bool found;
    };
    // The first match that begins at `from` or later. When the limits are reached there is none.
    Match find(std::string_view text, std::size_t from);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace nibble
