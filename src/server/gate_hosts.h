// Which names a request may give in Host. A page of a stranger's can point its own name at this machine (DNS
// rebinding) and would then be of the same origin as the server; its requests have that name in Host.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// A name that no stranger can point here: an address, localhost and what lies below it, and names without a
// dot, which public name servers do not resolve.
bool is_local_name(std::string_view host);

class AllowedHosts {
 public:
  // Beyond local names: names, "*.name" for all names below one, "*" for any. Case does not count.
  explicit AllowedHosts(std::vector<std::string> names);

  // `host` may have a port.
  bool allows(std::string_view host) const;

 private:
  std::vector<std::string> names_;
  std::vector<std::string> suffixes_;  // with the dot they begin with
  bool any_ = false;
};

}  // namespace nibble
