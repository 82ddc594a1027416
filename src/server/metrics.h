// What the server counts. Names, labels and bucket bounds beginning with `vllm:` are vLLM's, so that its
// dashboards and autoscalers read them; what it has no name for begins with `nibble:`. Lives on the I/O
// thread.
//
// A request that is refused counts nowhere. Token counters equal the sum of all `usage` answered: the prompt
// of several choices counts once.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "engine/engine_thread.h"
#include "server/constraint_counts.h"
#include "server/metrics_text.h"

namespace nibble {

class Metrics {
 public:
  enum class Outcome : std::uint8_t { stop, length, abort, error };

  // `clock` and `model` outlive the metrics.
  Metrics(std::string served_name, const ModelInfo& model, const Clock& clock);

  // A generation that the engine has taken: `n` choices of each prompt, with ids from `first` on.
  struct Accepted {
    RequestId first = 0;
    std::span<const int> prompt_tokens;  // a prompt
    int n = 1;
    int max_tokens = 0;
  };
  void accept(const Accepted& accepted);
  // Each event of a sequence that is still wanted.
  void take(const DeliveredEvent& event);
  // A sequence ended before the engine knew: at a stop string, or because its client went. What the engine
  // says of it afterwards counts nothing.
  void end(RequestId id, Outcome outcome);

  struct Clients {
    int connections = 0;          // open now
    std::uint64_t displaced = 0;  // closed so far because others needed their places
  };
  std::string text(const EngineCounts& counts, const Clients& clients,
                   const ConstraintCounts& constraints = {}) const;

 private:
  using Time = std::chrono::nanoseconds;
  struct Sequence {
    int prompt_tokens = 0;
    RequestId first_choice = 0;  // of the same prompt, which counts its tokens
    int max_tokens = 0;
    int generated = 0;
    Time accepted{0};
    std::optional<Time> begun;  // out of the queue
    Time first_token{0};
    Time last_token{0};
    bool prompt_counted = false;
  };

  void write_requests(MetricsText& text) const;
  void write_engine(MetricsText& text, const EngineCounts& counts) const;
  void write_plan_info(MetricsText& text) const;

  const std::string served_name_;
  const ModelInfo& model_;
  const Clock& clock_;
  std::unordered_map<RequestId, Sequence> sequences_;

  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t generation_tokens_ = 0;
  std::array<std::uint64_t, 4> outcomes_{};  // [Outcome]
  Histogram time_to_first_token_, inter_token_, request_per_token_;
  Histogram whole_time_, queue_time_, prefill_time_, decode_time_, inference_time_;
  Histogram request_prompt_tokens_, request_generation_tokens_, request_max_tokens_, request_n_;
};

}  // namespace nibble
