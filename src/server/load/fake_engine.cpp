#include "server/load/fake_engine.h"

#include <algorithm>
#include <thread>

namespace nibble {
namespace {

using SteadyClock = std::chrono::steady_clock;

class FakeEngine final : public Engine {
 public:
  FakeEngine(const FakePace& pace, TokenId word, TokenTimes* times)
      : pace_(pace), word_(word), times_(times), groups_(static_cast<std::size_t>(pace.groups)) {
    info_.name = "fake";
    info_.vocabulary = 1 << 20;
    info_.max_model_len = 1 << 20;
    info_.kv_tokens = 16 * pace.sequences;
    info_.plan.gates = pace.gates;
  }

  const ModelInfo& model() const override { return info_; }
  Status submit(Request request) override {
    waiting_.push_back(std::move(request));
    return {};
  }
  void cancel(RequestId id) override {
    const auto is_it = [id](const auto& each) { return each.id == id; };
    std::size_t found = std::erase_if(waiting_, is_it);
    for (auto& group : groups_) {
      const std::size_t ended = std::erase_if(group, is_it);
      running_ -= static_cast<int>(ended);
      found += ended;
    }
    if (found > 0) cancelled_.push_back(id);
  }
  bool idle() const override { return running_ == 0 && waiting_.empty() && cancelled_.empty(); }
  EngineLoad load_now() const override {
    return {.queued = static_cast<int>(waiting_.size()),
            .running = running_,
            .pages_used = running_,
            .pages = pace_.sequences,
            .used_share = static_cast<double>(running_) / pace_.sequences};
  }

  Result<StepTimes> step(std::vector<Event>& events) override {
    // A step that comes late delays those after it, as a real one would.
    next_ = std::max(next_, SteadyClock::now());
    std::this_thread::sleep_until(next_);
    next_ += pace_.step;
    StepTimes times{.seconds = std::chrono::duration<double>(pace_.step).count()};
    for (const RequestId id : cancelled_)
      events.push_back({.request = id, .finish = FinishReason::cancelled});
    cancelled_.clear();
    begin_waiting(times);
    auto& group = groups_[steps_++ % groups_.size()];
    for (Sequence& each : group) say(each, events);
    times.decode_tokens = static_cast<int>(group.size());
    running_ -= static_cast<int>(std::erase_if(group, [](const Sequence& each) { return each.left == 0; }));
    return times;
  }
  void time_ops(TimeTable*) override {}

 private:
  struct Sequence {
    RequestId id;
    int stream;
    int said;
    int left;
  };

  void begin_waiting(StepTimes& times) {
    while (!waiting_.empty() && running_ < pace_.sequences) {
      const Request& request = waiting_.front();
      groups_[begun_++ % groups_.size()].push_back({.id = request.id,
                                                    .stream = request.prompt.front(),
                                                    .said = 0,
                                                    .left = std::max(1, request.sampling.max_tokens)});
      times.prefill_tokens += static_cast<int>(request.prompt.size());
      ++running_;
      waiting_.pop_front();
    }
  }

  void say(Sequence& sequence, std::vector<Event>& events) {
    if (times_ != nullptr) times_->note(sequence.stream, sequence.said);
    ++sequence.said;
    --sequence.left;
    events.push_back({.request = sequence.id,
                      .token = word_,
                      .logprob = -1,
                      .finish = sequence.left == 0 ? FinishReason::length : FinishReason::none});
  }

  const FakePace pace_;
  const TokenId word_;
  TokenTimes* const times_;
  ModelInfo info_;
  std::deque<Request> waiting_;
  std::vector<std::vector<Sequence>> groups_;
  std::vector<RequestId> cancelled_;
  SteadyClock::time_point next_;
  std::size_t steps_ = 0, begun_ = 0;
  int running_ = 0;
};

}  // namespace

std::size_t TokenTimes::place(int stream, int token) const {
  const std::size_t at =
      static_cast<std::size_t>(stream) * static_cast<std::size_t>(tokens_) + static_cast<std::size_t>(token);
  return token < tokens_ && at < ticks_.size() ? at : ticks_.size();
}

void TokenTimes::note(int stream, int token) {
  const std::size_t at = place(stream, token);
  if (at < ticks_.size()) ticks_[at] = SteadyClock::now().time_since_epoch().count();
}

std::chrono::nanoseconds TokenTimes::at(int stream, int token) const {
  const std::size_t at = place(stream, token);
  return SteadyClock::duration(at < ticks_.size() ? ticks_[at].load() : 0);
}

std::unique_ptr<Engine> make_fake_engine(const FakePace& pace, TokenId word, TokenTimes* times) {
  return std::make_unique<FakeEngine>(pace, word, times);
}

}  // namespace nibble
