// What the processes of one world hold in common, so that nobody else joins it: the bytes of a file. Each
// shows the other that it holds them, over numbers drawn for that one connection, before anything else is
// said. What is said then is neither hidden nor signed: the network between the machines has to be trusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace nibble {

class LinkKey {
 public:
  static constexpr std::size_t least_bytes = 16;
  using Nonce = std::array<std::byte, 32>;
  using Proof = std::array<std::byte, 32>;
  enum class Side : std::uint8_t { caller = 1, called = 2 };

  LinkKey() = default;  // no bytes, which everybody holds: for processes of one machine
  explicit LinkKey(std::string_view bytes) : bytes_(bytes.begin(), bytes.end()) {}
  static Result<LinkKey> from_file(const std::filesystem::path& file);

  static Nonce draw_nonce();
  // What one side shows the other: HMAC-SHA256 of its side and both numbers.
  Proof prove(Side side, const Nonce& of_caller, const Nonce& of_called) const;
  bool proves(const Proof& proof, Side side, const Nonce& of_caller, const Nonce& of_called) const;

 private:
  std::vector<unsigned char> bytes_;
};

}  // namespace nibble
