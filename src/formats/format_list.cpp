#include "formats/format_list.h"

#include <array>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/fp16.h"
#include "formats/fp8_block.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"
#include "formats/q8.h"

namespace nibble {
namespace {

constexpr std::array formats = {
    NumberFormat{.name = "bf16",
                 .bits = 16,
                 .block = 0,
                 .scale_bits = 0,
                 .max = Bf16{0x7f7f}.to_float(),
                 .has_infinity = true,
                 .has_nan = true,
                 .summary = "the upper half of a float32"},
    NumberFormat{.name = "fp16",
                 .bits = 16,
                 .block = 0,
                 .scale_bits = 0,
                 .max = Fp16{0x7bff}.to_float(),
                 .has_infinity = true,
                 .has_nan = true,
                 .summary = "IEEE half precision"},
    NumberFormat{.name = "e4m3",
                 .bits = 8,
                 .block = 0,
                 .scale_bits = 0,
                 .max = E4m3::max,
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "FP8, the fn form"},
    NumberFormat{.name = "e8m0",
                 .bits = 8,
                 .block = 0,
                 .scale_bits = 0,
                 .max = E8m0{254}.to_float(),
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "a power of two, the scale of the MX formats"},
    NumberFormat{.name = "e2m1",
                 .bits = 4,
                 .block = 0,
                 .scale_bits = 0,
                 .max = E2m1::max,
                 .has_infinity = false,
                 .has_nan = false,
                 .summary = "FP4, two a byte"},
    NumberFormat{.name = "q8",
                 .bits = 8,
                 .block = q8_block,
                 .scale_bits = 8,
                 .max = q8_max_code,
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "blocks of 32 8-bit integers sharing an e8m0 scale"},
    NumberFormat{.name = "mxfp8",
                 .bits = 8,
                 .block = mxfp8_block,
                 .scale_bits = 8,
                 .max = E4m3::max,
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "blocks of 32 e4m3 values sharing an e8m0 scale"},
    NumberFormat{.name = "fp8_block",
                 .bits = 8,
                 .block = fp8_tile * fp8_tile,
                 .scale_bits = 32,
                 .max = E4m3::max,
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "tiles of 128 x 128 e4m3 values sharing a float32 scale"},
    NumberFormat{.name = "nvfp4",
                 .bits = 4,
                 .block = nvfp4_block,
                 .scale_bits = 8,
                 .max = E2m1::max,
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "blocks of 16 e2m1 values sharing an e4m3 scale, and a float32 scale a tensor"},
    NumberFormat{.name = "mxfp4",
                 .bits = 4,
                 .block = mxfp4_block,
                 .scale_bits = 8,
                 .max = E2m1::max,
                 .has_infinity = false,
                 .has_nan = true,
                 .summary = "blocks of 32 e2m1 values sharing an e8m0 scale"},
};

}  // namespace

std::span<const NumberFormat> format_list() { return formats; }

const NumberFormat* find_format(std::string_view name) {
  for (const NumberFormat& format : formats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

}  // namespace nibble
