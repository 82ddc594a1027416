// A request of the engine's own, by which an engine that nobody asks for anything finds out whether it still
// computes what it computed first. It goes through the scheduler, the kernels and the ranks as every other
// one, so a rank that is gone or a memory that decays is known before the next client comes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/request.h"

namespace nibble {

class SelfTest {
 public:
  static constexpr RequestId id = std::numeric_limits<RequestId>::max();
  // Fewer than a page has positions, so that no cache keeps them.
  static constexpr int prompt_tokens = 8, answer_tokens = 2;

  explicit SelfTest(int vocabulary) : vocabulary_(vocabulary) {}

  // The same one every time. A run begins.
  Request begin();
  // Takes the next event of the run. A Status at its end where the answer has other bits than the first
  // run's.
  Status take(const Event& event);
  std::uint64_t runs() const { return runs_; }  // that ended as the first one

 private:
  struct Answer {
    std::vector<TokenId> tokens;
    std::vector<float> logprobs;  // of the prompt's tokens, then of the answer's
    bool operator==(const Answer&) const = default;
  };

  int vocabulary_;
  Answer answer_;  // of the run
  std::optional<Answer> first_;
  std::uint64_t runs_ = 0;
};

}  // namespace nibble
