// The number formats nibble reads and writes, as facts: what `inspect` prints and a plan counts bytes by.
#pragma once

#include <span>
#include <string_view>

namespace nibble {

struct NumberFormat {
  std::string_view name;
  int bits;        // of one value as stored, its share of a scale not counted
  int block;       // values that share a scale; 0: there is none
  int scale_bits;  // of one scale; 0: there is none
  float max;       // the largest finite magnitude, in a block format before scaling
  bool has_infinity;
  bool has_nan;
  std::string_view summary;

  double bits_per_value() const { return block == 0 ? bits : bits + static_cast<double>(scale_bits) / block; }
};

// Widest first.
std::span<const NumberFormat> format_list();
// Null when there is no such format.
const NumberFormat* find_format(std::string_view name);

}  // namespace nibble
