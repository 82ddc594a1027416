// json.dumps as the chat templates' tojson filter calls it.
#include <algorithm>
#include <cmath>

#include "text/jinja/jinja_value.h"

namespace nibble::jinja {
namespace {

class Writer {
 public:
  explicit Writer(const ToJson& options) : options_(options) {
    if (options.separators) {
      comma_ = options.separators->first;
      colon_ = options.separators->second;
    } else {
      comma_ = options.indent ? "," : ", ";
      colon_ = ": ";
    }
  }

  Status write(const Value& value, int level) {
    switch (value.type()) {
      case Type::none: out_ += "null"; return {};
      case Type::boolean: out_ += value.as_bool() ? "true" : "false"; return {};
      case Type::integer: out_ += std::to_string(value.as_integer()); return {};
      case Type::real: out_ += real(value.as_real()); return {};
      case Type::text: string(value.bytes()); return {};
      case Type::list: return list(value.as_list(), level);
      case Type::dict: return dict(value.as_dict(), level);
      default:
        return invalid_argument("tojson: a value of type " + std::string(value.type_name()) +
                                " has no JSON form");
    }
  }

  std::string take() && { return std::move(out_); }

 private:
  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_real(value);
  }

  void line(int level) {
    if (!options_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *options_.indent;
  }

  Status list(const List& list, int level) {
    out_ += '[';
    bool first = true;
    for (const Value& item : list.items) {
      if (!first) out_ += comma_;
      first = false;
      line(level + 1);
      NIBBLE_RETURN_IF_ERROR(write(item, level + 1));
    }
    if (!first) line(level);
    out_ += ']';
    return {};
  }

  static Result<std::string> key_text(const Value& key) {
    switch (key.type()) {
      case Type::text: return key.bytes();
      case Type::none: return std::string("null");
      case Type::boolean: return std::string(key.as_bool() ? "true" : "false");
      case Type::integer: return std::to_string(key.as_integer());
      case Type::real: return real(key.as_real());
      default:
        return invalid_argument("tojson: a key of type " + std::string(key.type_name()) +
                                " has no JSON form");
    }
  }

  Status dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (options_.sort_keys) {
      bool comparable = true;
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        const auto compared = order(a->first, b->first);
        comparable = comparable && compared.has_value();
        return compared.value_or(0) < 0;
      });
      if (!comparable) return invalid_argument("tojson: keys of different types cannot be sorted");
    }
    out_ += '{';
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out_ += comma_;
      first = false;
      line(level + 1);
      NIBBLE_ASSIGN(std::string key, key_text(entry->first));
      string(key);
      out_ += colon_;
      NIBBLE_RETURN_IF_ERROR(write(entry->second, level + 1));
    }
    if (!first) line(level);
    out_ += '}';
    return {};
  }

  void unicode_escape(char32_t unit) {
    static constexpr char kHex[] = "0123456789abcdef";
    out_ += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out_ += kHex[(unit >> shift) & 15];
  }

  void string(std::string_view text) {
    out_ += '"';
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      switch (c.value) {
        case '"': out_ += "\\\""; break;
        case '\\': out_ += "\\\\"; break;
        case '\n': out_ += "\\n"; break;
        case '\r': out_ += "\\r"; break;
        case '\t': out_ += "\\t"; break;
        case '\b': out_ += "\\b"; break;
        case '\f': out_ += "\\f"; break;
        default:
          if (c.value < 0x20) {
            unicode_escape(c.value);
          } else if (c.value < 0x7F || (!options_.ensure_ascii)) {
            out_ += text.substr(at, c.length);
          } else if (c.value < 0x10000) {
            // 0x7F is ASCII and printed as it is.
            if (c.value == 0x7F) {
              out_ += '\x7F';
            } else {
              unicode_escape(c.value);
            }
          } else {
            unicode_escape(0xD800 + ((c.value - 0x10000) >> 10));
            unicode_escape(0xDC00 + ((c.value - 0x10000) & 0x3FF));
          }
      }
      at += c.length;
    }
    out_ += '"';
  }

  const ToJson& options_;
  std::string comma_, colon_;
  std::string out_;
};

}  // namespace

Result<std::string> to_json(const Value& value, const ToJson& options) {
  Writer writer(options);
  NIBBLE_RETURN_IF_ERROR(writer.write(value, 0));
  return std::move(writer).take();
}

}  // namespace nibble::jinja
