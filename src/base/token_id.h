#pragma once

#include <cstdint>

namespace nibble {

using TokenId = std::int32_t;

}  // namespace nibble
