#include "formats/layout_stamp.h"

#include <algorithm>
#include <cstring>

#include "base/quote.h"

namespace nibble {
namespace {

// The finaliser of splitmix64: every bit of the input reaches every bit of the output.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::uint64_t word_at(const std::uint8_t* bytes, std::size_t count) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

}  // namespace

std::uint64_t content_hash(std::span<const std::uint8_t> bytes, std::uint64_t before) {
  // Four chains, so that the multiplications of one do not wait for those of another.
  std::uint64_t chains[4] = {before ^ 1, before ^ 2, before ^ 3, before ^ 4};
  constexpr std::size_t step = sizeof chains;
  std::size_t at = 0;
  for (; at + step <= bytes.size(); at += step) {
    for (std::size_t c = 0; c < 4; ++c)
      chains[c] =
          (chains[c] ^ word_at(bytes.data() + at + 8 * c, 8)) * 0x9fb21c651e98df25u + (chains[c] >> 29);
  }
  std::uint64_t hash = mix(before + bytes.size());
  for (const std::uint64_t chain : chains) hash = mix(hash ^ chain);
  for (; at < bytes.size(); at += 8)
    hash = mix(hash ^ word_at(bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at)));
  return hash;
}

Status check_stamp(const LayoutStamp& stamp, std::string_view layout, const Shape& shape,
                   std::span<const std::uint8_t> bytes, std::string_view name) {
  if (stamp.layout != layout) {
    return invalid_argument(quote(name) + " is in the layout " + quote(stamp.layout) + ", not " +
                            quote(layout) + "; convert it first");
  }
  if (stamp.shape != shape) {
    return invalid_argument(quote(name) + " has the shape " + stamp.shape.to_string() + "; wanted is " +
                            shape.to_string());
  }
  if (stamp.hash != content_hash(bytes)) {
    return broken_model("the bytes of " + quote(name) +
                        " are not those it was stamped with; make it again from its checkpoint");
  }
  return {};
}

}  // namespace nibble
