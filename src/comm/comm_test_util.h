// What tests of ranks share: a body run by each member in a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace nibble {

inline Group whole_world(int ranks) {
  Group group;
  for (int i = 0; i < ranks; ++i) group.members.push_back(i);
  return group;
}

template <class Body>
void on_each(std::vector<Communicator>& members, const Body& body) {
  std::vector<std::thread> threads;
  for (Communicator& member : members) threads.emplace_back([&body, &member] { body(member); });
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<Communicator> members_of(const Group& group, std::size_t slot_bytes,
                                            Communicator::Options options = {}) {
  auto members = communicators_of(group, slot_bytes, options);
  NIBBLE_CHECK(members.ok(), members.status().message());
  return std::move(members).value();
}

// Values over a wide range, with zeros of both signs; the same for the same seed.
inline std::vector<float> wide_floats(unsigned seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const unsigned bits = random();
    if (bits % 19 == 0) {
      value = bits % 2 == 0 ? 0.0f : -0.0f;
      continue;
    }
    value = std::ldexp(static_cast<float>(static_cast<int>(bits % 65536) - 32768),
                       static_cast<int>(bits >> 16) % 24 - 24);
  }
  return values;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace nibble
