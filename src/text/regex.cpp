#include "text/regex.h"

#include <cstdint>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "base/quote.h"

namespace nibble {
namespace {

// A match that needs more is given up. The heap limit is in KiB.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kDepthLimit = 100'000;
constexpr std::uint32_t kHeapLimit = 64 * 1024;
constexpr std::size_t kJitStackStart = 32 * 1024;
constexpr std::size_t kJitStackMost = 1024 * 1024;
constexpr std::size_t kMaxPattern = 64 * 1024;

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

struct Regex::Matcher::State {
  std::shared_ptr<const Code> code;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Result<Regex> Regex::compile(std::string_view pattern) {
  const auto refuse = [pattern](std::string_view why) {
    return broken_model("the split pattern " + quote(pattern) + " " + std::string(why));
  };
  if (pattern.size() > kMaxPattern) return refuse("has more than 65536 bytes");
  if (pattern.find("&&") != std::string_view::npos) {
    return refuse("uses the set intersection &&, which nibble does not know");
  }
  if (pattern.find("\\h") != std::string_view::npos) {
    return refuse("uses \\h, which means a hexadecimal digit to some engines and white space to others");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Code>();
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions,
                                 &error, &offset, nullptr);
  if (compiled->code == nullptr) {
    char message[256];
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return refuse("is no regular expression: " + std::string(message) + " at byte " + std::to_string(offset));
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) return refuse("can match the empty text, which would split everywhere");
  // Where the machine forbids making code at run time the interpreter takes over.
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->code = regex.code_;
  state_->data = pcre2_match_data_create_from_pattern(regex.code_->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  NIBBLE_CHECK(state_->data != nullptr && state_->context != nullptr, "out of memory");
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_depth_limit(state_->context, kDepthLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimit);
  state_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

Regex::Matcher::~Matcher() = default;
Regex::Matcher::Matcher(Matcher&&) noexcept = default;

Regex::Matcher::Match Regex::Matcher::find(std::string_view text, std::size_t from) {
  const int count = pcre2_match(state_->code->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (count < 0) return {text.size(), text.size(), false};
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state_->data);
  // \K can move a match's begin behind its end or before `from`; neither splits anything.
  if (span[0] < from || span[1] <= span[0]) return {text.size(), text.size(), false};
  return {span[0], span[1], true};
}

}  // namespace nibble
