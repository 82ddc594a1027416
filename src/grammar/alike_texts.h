// Elements and names that may turn out to be the same, told from how they begin.
#pragma once

#include <string_view>

namespace nibble {

// Whether of two elements or names, parted by commas, one may be the other's beginning: `before` is how the
// one begins that goes on with `token`.
bool may_be_alike(std::string_view before, std::string_view token);

}  // namespace nibble
