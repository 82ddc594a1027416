// An engine without a model, for load on everything before it: it says one word at a set pace, to so many
// sequences at once, and notes when.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace nibble {

// When each token of each stream left the engine. Streams are told apart by the first token id of their
// prompts. Any thread may read.
class TokenTimes {
 public:
  TokenTimes(int streams, int tokens)
      : tokens_(tokens), ticks_(static_cast<std::size_t>(streams) * static_cast<std::size_t>(tokens)) {}
  void note(int stream, int token);
  // Since the epoch of the steady clock; 0: not yet, or not watched.
  std::chrono::nanoseconds at(int stream, int token) const;

 private:
  std::size_t place(int stream, int token) const;

  int tokens_;
  std::vector<std::atomic<std::chrono::steady_clock::rep>> ticks_;  // [streams * tokens]
};

struct FakePace {
  int sequences = 64;  // that run at once; more wait
  int groups = 1;      // of sequences; each step serves one, in turn
  std::chrono::nanoseconds step{0};
  std::vector<GateResult> gates = {};  // of its plan
};

// `times` outlives the engine; null: nobody asks.
std::unique_ptr<Engine> make_fake_engine(const FakePace& pace, TokenId word, TokenTimes* times);

}  // namespace nibble
