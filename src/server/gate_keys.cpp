#include "server/gate_keys.h"

#include <algorithm>
#include <unordered_set>

#include "base/file.h"

namespace nibble {
namespace {

// Every request is compared with every key.
constexpr std::size_t most_keys = 1000;
constexpr std::size_t most_file_bytes = 256 << 10;
constexpr std::size_t most_name_bytes = 64;
constexpr std::string_view blanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_name(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= most_name_bytes && std::all_of(text.begin(), text.end(), fits);
}

bool is_secret(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f && c != ':'; });
}

// Reads one line that is neither empty nor a comment. The error goes on after the line's number.
Result<ApiKey> parse_line(std::string_view line, std::size_t number) {
  const std::size_t colon = line.find(':');
  const std::string_view name = colon == std::string_view::npos ? "" : trimmed(line.substr(0, colon));
  const std::string_view secret = colon == std::string_view::npos ? line : trimmed(line.substr(colon + 1));
  if (colon != std::string_view::npos && !is_name(name))
    return invalid_argument("the name before the colon must be 1 to 64 letters, digits, '.', '_' or '-'");
  if (!is_secret(secret))
    return invalid_argument(
        "a key must be visible ASCII without spaces or colons; write `name: key` or `key`");
  return ApiKey{.name = name.empty() ? "line-" + std::to_string(number) : std::string(name),
                .secret = std::string(secret)};
}

// Touches every byte of the secret, however much of it is right. How long it takes follows from the secret's
// length alone.
bool is_same(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference |= static_cast<unsigned char>(other ^ secret[i]);
  }
  return difference == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text, std::string_view file_name) {
  std::vector<ApiKey> keys;
  std::unordered_set<std::string> names, secrets;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    const auto refuse = [&](std::string_view why) {
      return invalid_argument("--api-key-file " + std::string(file_name) + " line " + std::to_string(number) +
                              ": " + std::string(why));
    };
    Result<ApiKey> key = parse_line(line, number);
    if (!key.ok()) return refuse(key.status().message());
    if (!names.insert(key->name).second) return refuse("another key has this name; names must differ");
    if (!secrets.insert(key->secret).second)
      return refuse("this key stands there twice; delete one of the lines");
    keys.push_back(*std::move(key));
  }
  if (keys.empty())
    return invalid_argument("--api-key-file " + std::string(file_name) +
                            " has no key; write one a line, as `name: key`");
  if (keys.size() > most_keys)
    return invalid_argument("--api-key-file " + std::string(file_name) + " has " +
                            std::to_string(keys.size()) + " keys; at most " + std::to_string(most_keys) +
                            " are served");
  return ApiKeys(std::move(keys));
}

Result<ApiKeys> ApiKeys::load(const std::string& single, const std::string& file) {
  ApiKeys keys;
  if (!file.empty()) {
    const Result<std::string> text = read_file(file, most_file_bytes);
    if (!text.ok()) return invalid_argument("--api-key-file: " + text.status().message());
    NIBBLE_ASSIGN(keys, parse(*text, file));
  }
  if (!single.empty()) keys.keys_.push_back({.name = "api-key", .secret = single});
  return keys;
}

std::optional<std::string_view> ApiKeys::find(std::string_view given) const {
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_) {
    if (is_same(given, key.secret)) found = &key;
  }
  if (found == nullptr) return {};
  return found->name;
}

}  // namespace nibble
