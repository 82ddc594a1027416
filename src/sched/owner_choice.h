// Where each rank has sequences of its own: which of them gets a request. The choice changes no bit of an
// answer, only who computes it.
#pragma once

#include <array>
#include <span>

namespace nibble {

inline constexpr int most_owners = 8;

// What is known of an owner when a request is to begin.
struct OwnerFacts {
  int index = 0;
  int prefix = 0;   // of the request's first tokens, those whose keys and values it has
  int running = 0;  // sequences
  int pages = 0;    // in use
};

// How many sequences more than another an owner may run and still get a request for its prefix: one that has
// what all requests begin with would get them all. A plan says so (plan/plan.h).
inline constexpr int most_ahead_for_prefix = 4;

// The best first. Depends on the facts alone.
void sort_owners(std::span<OwnerFacts> owners);

}  // namespace nibble
