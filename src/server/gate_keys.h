// API keys with names: who asks is known by the name, which the log may show.
//
// The file has a key a line: `name: key`, or `key` alone, which is then named for its line ("line-3"). Empty
// lines and lines that begin with # count for nothing. A key is visible ASCII without a space or a colon; a
// name is letters, digits, '.', '_' and '-', and each name and each key stands there once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

struct ApiKey {
  std::string name;
  std::string secret;
};

class ApiKeys {
 public:
  ApiKeys() = default;  // none: no key is asked for
  explicit ApiKeys(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

  // Errors name the line at fault and never show what stands there.
  static Result<ApiKeys> parse(std::string_view text, std::string_view file_name);
  // The keys of the file, and `single`, which is named "api-key"; either may be empty.
  static Result<ApiKeys> load(const std::string& single, const std::string& file);

  bool asked_for() const { return !keys_.empty(); }
  std::size_t size() const { return keys_.size(); }
  // The name of that key, or nothing. Takes as long for a wrong key as for a right one. The view lives as
  // long as these keys.
  std::optional<std::string_view> find(std::string_view given) const;

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace nibble
