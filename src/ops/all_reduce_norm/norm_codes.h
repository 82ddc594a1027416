// What the norm may be written as: codes of eight or four bits with their scales. Codes are those of the norm
// as a bfloat16, whatever enters products otherwise. NaN and infinity are data: they void their scale's
// values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace nibble {

// FP8 as `--dtype fp8` rounds rows (formats/e4m3_row.h): one scale a row, a power of two; 1 for a row of
// zeros. A row with a NaN or an infinity has the scale NaN and the codes of its values divided by nothing.
struct E4m3Rows {
  std::uint8_t* codes = nullptr;  // [rows, hidden]
  float* scales = nullptr;        // [rows]
};

// NVFP4 (formats/nvfp4.h), of a multiple of 16 columns. A block of zeros has the scale 0 and codes of zeros,
// with their signs; one with a NaN or an infinity the scale NaN and codes 0.
struct Nvfp4Rows {
  std::uint8_t* codes = nullptr;   // [rows, hidden / 2], an even column in the low four bits
  std::uint8_t* scales = nullptr;  // E4M3 [rows, hidden / 16]
  // G of nvfp4.h, 1 / input_scale of a checkpoint: finite, normal, above zero.
  const float* global_scales = nullptr;  // [global_count]
  int global_count = 1;                  // one for all rows, or one a row
};

// Whether so many rows of so many columns can be written so; what global scales are is not looked at.
Status check_norm_codes(const E4m3Rows& codes, int rows, int hidden);
Status check_norm_codes(const Nvfp4Rows& codes, int rows, int hidden);

// From row `first` on; of global scales for each row as many are left.
inline E4m3Rows rows_from(const E4m3Rows& all, int first, int hidden) {
  return {all.codes + static_cast<std::size_t>(first) * static_cast<std::size_t>(hidden), all.scales + first};
}
inline Nvfp4Rows rows_from(const Nvfp4Rows& all, int first, int hidden) {
  const std::size_t columns = static_cast<std::size_t>(first) * static_cast<std::size_t>(hidden);
  Nvfp4Rows from = all;
  from.codes += columns / 2;
  from.scales += columns / 16;
  if (all.global_count != 1) {
    from.global_scales += first;
    from.global_count -= first;
  }
  return from;
}

}  // namespace nibble
