// What travels with weights once their bytes are no longer in a checkpoint's layout: which layout it is, the
// shape, and a hash of the bytes. Bytes without the right stamp are refused where they are taken up, since a
// wrong layout gives wrong numbers without failing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/shape.h"

namespace nibble {

// A hash for finding what is wrong, not for keeping an attacker out; the same on every machine. Parts may be
// hashed one after the other: the hash of the part before is where the next one begins.
std::uint64_t content_hash(std::span<const std::uint8_t> bytes, std::uint64_t before = 0);

struct LayoutStamp {
  std::string layout;  // a layout's tag
  Shape shape;         // of the weights, not of the bytes
  std::uint64_t hash = 0;

  friend bool operator==(const LayoutStamp&, const LayoutStamp&) = default;
};

template <class Layout>
LayoutStamp stamp(const Shape& shape, std::span<const std::uint8_t> bytes) {
  return {std::string(Layout::tag), shape, content_hash(bytes)};
}

// Whether the bytes are what the stamp says, and that is what is wanted; `name` says whose they are.
Status check_stamp(const LayoutStamp& stamp, std::string_view layout, const Shape& shape,
                   std::span<const std::uint8_t> bytes, std::string_view name);

}  // namespace nibble
