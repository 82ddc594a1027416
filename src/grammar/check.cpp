#include "grammar/check.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "base/json_copy.h"
#include "base/json_writer.h"
#include "base/thread_time.h"
#include "grammar/number_text.h"

namespace nibble {
namespace {

constexpr int kShownTokens = 12;

// As people and most programs write a number: with an exponent only where it is very large or small. One that
// was read with a fraction keeps one, for such a number is no integer to some.
void write_scalar(JsonValue value, std::string& out) {
  JsonWriter writer(out);
  const double size = value.type() == JsonType::real ? std::abs(value.as_double()) : 0;
  if (size >= 1e-4 && size < 1e16) {
    const std::string decimal = decimal_of(value);
    out += decimal;
    if (decimal.find('.') == std::string::npos) out += ".0";
  } else {
    copy_json(value, writer);
  }
}

enum class Form : std::uint8_t { compact, indented };

void write(JsonValue value, Form form, int level, std::string& out) {
  if ((!value.is_object() && !value.is_array()) || value.size() == 0) {
    write_scalar(value, out);
    return;
  }
  const auto line = [&](int depth) {
    if (form == Form::indented) out.append("\n").append(static_cast<std::size_t>(depth) * 2, ' ');
  };
  out.push_back(value.is_object() ? '{' : '[');
  bool first = true;
  const auto separate = [&] {
    if (!first) out.push_back(',');
    first = false;
    line(level + 1);
  };
  if (value.is_object()) {
    for (const auto [name, member] : value.members()) {
      separate();
      JsonWriter(out).value(name);
      out.append(form == Form::indented ? ": " : ":");
      write(member, form, level + 1, out);
    }
  } else {
    for (const JsonValue each : value.elements()) {
      separate();
      write(each, form, level + 1, out);
    }
  }
  line(level);
  out.push_back(value.is_object() ? '}' : ']');
}

}  // namespace

std::string compact_json(JsonValue value) {
  std::string out;
  write(value, Form::compact, 0, out);
  return out;
}

std::string indented_json(JsonValue value) {
  std::string out;
  write(value, Form::indented, 0, out);
  return out;
}

TextCheck check_text(const std::shared_ptr<const Grammar>& grammar,
                     const std::shared_ptr<const GrammarVocabulary>& vocabulary, const Tokenizer& tokenizer,
                     std::string_view text) {
  const std::vector<TokenId> ids = tokenizer.encode(text);
  TextCheck out;
  out.tokens = ids.size();
  const auto constraint = start(grammar, vocabulary);
  std::vector<std::uint32_t> mask(token_mask_words(vocabulary->size()));
  for (std::size_t i = 0; i <= ids.size(); ++i) {
    const double begin = thread_cpu_us();
    constraint->fill(mask);
    out.mask_us.push_back(thread_cpu_us() - begin);
    const bool fits = i < ids.size() ? (mask[static_cast<std::size_t>(ids[i]) / 32] >> ids[i] % 32 & 1) != 0
                                     : constraint->complete();
    if (fits && i < ids.size()) {
      constraint->accept(ids[i]);
      continue;
    }
    out.taken = fits;
    out.refused_at = i;
    out.may_end = constraint->complete();
    if (i < ids.size()) out.refused = tokenizer.bytes(ids[i]);
    int shown = 0;
    for (TokenId token = 0; token < vocabulary->size() && shown < kShownTokens; ++token) {
      if (!(mask[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) || vocabulary->is_end(token))
        continue;
      out.allowed.append(shown++ == 0 ? "" : " ").append(tokenizer.bytes(token));
    }
    return out;
  }
  return out;
}

}  // namespace nibble
