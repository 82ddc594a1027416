// Bytes and counts as people read them: three digits and a unit, 3.71 GB, in powers of a thousand as disks
// and bandwidths count.
#pragma once

#include <cstdint>
#include <string>

namespace nibble {

std::string scaled_bytes(std::int64_t bytes);
std::string scaled_count(std::int64_t count);

}  // namespace nibble
