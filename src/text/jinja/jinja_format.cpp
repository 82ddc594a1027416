// text % arguments, as printf-style formatting of Python.
#include <algorithm>
#include <cstdio>

#include "text/jinja/jinja_interpreter.h"

namespace nibble::jinja {
namespace {

struct Conversion {
  bool left = false;
  bool zero = false;
  std::size_t width = 0;
  int precision = -1;
  char kind = 's';
};

Result<std::string> convert(const Conversion& conversion, const Value& value) {
  switch (conversion.kind) {
    case 'r': return repr(value);
    case 'd':
    case 'i': {
      const auto number = value.to_real();
      if (!number) return fault("'%d' needs a number, not " + std::string(value.type_name()));
      if (const auto integer = value.to_integer()) return std::to_string(*integer);
      if (!(*number > -9e18 && *number < 9e18)) return fault("'%d': the number is too large");
      return std::to_string(static_cast<std::int64_t>(*number));
    }
    default: {  // f
      const auto number = value.to_real();
      if (!number) return fault("'%f' needs a number, not " + std::string(value.type_name()));
      char buffer[512];
      const int length =
          std::snprintf(buffer, sizeof buffer, "%.*f",
                        conversion.precision < 0 ? 6 : std::min(conversion.precision, 100), *number);
      return std::string(buffer, static_cast<std::size_t>(length));
    }
  }
}

Result<Conversion> parse_conversion(std::string_view format, std::size_t& at) {
  Conversion conversion;
  for (; at < format.size() && (format[at] == '-' || format[at] == '0'); ++at) {
    (format[at] == '-' ? conversion.left : conversion.zero) = true;
  }
  const auto number = [&](std::size_t limit) {
    std::size_t parsed = 0;
    for (; at < format.size() && format[at] >= '0' && format[at] <= '9'; ++at) {
      parsed = std::min(parsed * 10 + static_cast<std::size_t>(format[at] - '0'), limit);
    }
    return parsed;
  };
  conversion.width = number(10'000);
  if (at < format.size() && format[at] == '.') {
    ++at;
    conversion.precision = static_cast<int>(number(100));
  }
  if (at >= format.size()) return fault("'%': a conversion is incomplete");
  conversion.kind = format[at++];
  if (std::string_view("srdif").find(conversion.kind) == std::string_view::npos) {
    return fault(std::string("'%': the conversion '%") + conversion.kind + "' is not supported");
  }
  return conversion;
}

}  // namespace

Result<Value> percent_format(Interpreter& interpreter, const Text& format,
                             const std::vector<Value>& arguments) {
  const std::string& bytes = format.bytes();
  Text out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t percent = std::min(bytes.find('%', at), bytes.size());
    if (percent > at) out.append_slice(format, at, percent);
    at = percent;
    if (at >= bytes.size()) break;
    ++at;
    if (at < bytes.size() && bytes[at] == '%') {
      out.append_slice(format, at, at + 1);
      ++at;
      continue;
    }
    NIBBLE_ASSIGN(const Conversion conversion, parse_conversion(bytes, at));
    if (next >= arguments.size()) return fault("'%': there are too few values for the format");
    const Value& value = arguments[next++];
    NIBBLE_ASSIGN(Text shown, interpreter.text_of(value));
    if (conversion.kind != 's') {
      NIBBLE_ASSIGN(std::string converted, convert(conversion, value));
      shown = Text::from_request(std::move(converted));
    } else if (conversion.precision >= 0) {
      shown =
          shown.slice(0, code_point_offset(shown.bytes(), static_cast<std::size_t>(conversion.precision)));
    }
    const std::size_t length = count_code_points(shown.bytes());
    const std::size_t missing = conversion.width > length ? conversion.width - length : 0;
    NIBBLE_RETURN_IF_ERROR(interpreter.spend(missing / 8 + 1));
    const bool zeros =
        conversion.zero && !conversion.left && conversion.kind != 's' && conversion.kind != 'r';
    if (zeros && shown.bytes().starts_with('-')) {
      out.append_untrusted("-" + std::string(missing, '0') + shown.bytes().substr(1));
      continue;
    }
    const std::string padding(missing, zeros ? '0' : ' ');
    if (!conversion.left && missing > 0) out.append_untrusted(padding);
    out.append(shown);
    if (conversion.left && missing > 0) out.append_untrusted(padding);
  }
  if (next < arguments.size() && !(arguments.size() == 1 && arguments[0].is(Type::dict))) {
    return fault("'%': there are more values than the format takes");
  }
  return interpreter.make_text(std::move(out));
}

}  // namespace nibble::jinja
