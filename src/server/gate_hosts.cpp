#include "server/gate_hosts.h"

#include <algorithm>

namespace nibble {
namespace {

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return out;
}

// Without its port, brackets and the dot that ends a full name.
std::string host_name(std::string_view host) {
  if (host.starts_with('[')) return lowered(host.substr(1, host.find(']') - 1));
  std::string name = lowered(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

// Browsers take any name whose last label is a number for an address, so none of these can be a name.
bool is_ipv4(std::string_view name) {
  return name.find_first_not_of("0123456789.") == std::string_view::npos &&
         std::count(name.begin(), name.end(), '.') == 3;
}

}  // namespace

bool is_local_name(std::string_view host) {
  const std::string name = host_name(host);
  if (host.starts_with('[') || is_ipv4(name)) return true;
  return name.find('.') == std::string::npos || name.ends_with(".localhost");
}

AllowedHosts::AllowedHosts(std::vector<std::string> names) {
  for (const std::string& name : names) {
    if (name == "*") {
      any_ = true;
    } else if (name.starts_with("*.")) {
      suffixes_.push_back(lowered(name.substr(1)));
    } else {
      names_.push_back(host_name(name));
    }
  }
}

bool AllowedHosts::allows(std::string_view host) const {
  if (any_ || is_local_name(host)) return true;
  const std::string name = host_name(host);
  return std::find(names_.begin(), names_.end(), name) != names_.end() ||
         std::any_of(suffixes_.begin(), suffixes_.end(), [&](const std::string& suffix) {
           return name.size() > suffix.size() && name.ends_with(suffix);
         });
}

}  // namespace nibble
