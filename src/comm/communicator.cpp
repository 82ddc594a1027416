#include "comm/communicator.h"

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;

// A peer is mostly a few microseconds away; where ranks outnumber CPUs, spinning keeps it from running. The
// longer it has taken, the less a longer sleep adds.
class Patience {
 public:
  Clock::duration waited() const { return waited_; }
  void pause() {
    if (++turns_ < 64) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      return;
    }
    using std::chrono::microseconds, std::chrono::milliseconds;
    if (waited_ < milliseconds(2)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(waited_ < milliseconds(20)    ? microseconds(50)
                                  : waited_ < milliseconds(500) ? microseconds(200)
                                                                : microseconds(5000));
    }
    waited_ = Clock::now() - begin_;
  }

 private:
  const Clock::time_point begin_ = Clock::now();
  Clock::duration waited_{0};
  int turns_ = 0;
};

}  // namespace

Communicator::Communicator(std::shared_ptr<GroupMemory> memory, Group group, int member,
                           const Options& options, int in_world)
    : memory_(std::move(memory)),
      group_(std::move(group)),
      member_(member),
      options_(options),
      in_world_(in_world) {
  NIBBLE_CHECK(group_.size() == memory_->members() && member >= 0 && member < group_.size());
}

Status Communicator::failure() const { return status_of(fault()); }

Status Communicator::fail(FaultNote note) {
  note.rank = static_cast<std::uint32_t>(rank_of(member_));
  note.step = step_;
  note_fault(fault(), note);
  return failure();
}

Status Communicator::wait_for(int peer, const Call& call) {
  const GroupMemory::Seat& seat = memory_->seat(peer);
  if (seat.step.load(std::memory_order_acquire) < step_) {
    World* const world = options_.world;
    if (world != nullptr)
      world->wait_begins(rank_of(member_), {.group = in_world_, .member = peer, .step = step_});
    const Status waited = wait_long_for(peer, call);
    if (world != nullptr) world->wait_ends(rank_of(member_));
    NIBBLE_RETURN_IF_ERROR(waited);
  }
  // The peer may be a step ahead, never two, so this parity still holds what it said of this step.
  const Call& theirs = seat.calls[step_ % 2];
  if (theirs != call) {
    return fail({.peer = static_cast<std::uint32_t>(rank_of(peer)),
                 .kind = FaultNote::Kind::differs,
                 .call = call,
                 .peer_call = theirs});
  }
  return {};
}

Status Communicator::wait_long_for(int peer, const Call& call) {
  const GroupMemory::Seat& seat = memory_->seat(peer);
  const auto deadline = step_ == 1 ? options_.first_deadline : options_.deadline;
  Patience patience;
  Stillness stillness(options_.watch, rank_of(peer), options_.stillness);
  while (seat.step.load(std::memory_order_acquire) < step_) {
    patience.pause();
    if (patience.waited() == Clock::duration{0}) continue;
    NIBBLE_RETURN_IF_ERROR(failure());
    const auto now = Clock::now();
    if (stillness.is_too_long(now) || now - stillness.last_beat_seen() >= deadline) {
      const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(patience.waited());
      return fail({.peer = static_cast<std::uint32_t>(stillness.whom()),
                   .call = call,
                   .peer_call = {},
                   .waited_ms = static_cast<std::uint64_t>(waited.count())});
    }
  }
  return {};
}

Result<Communicator::Shares> Communicator::share(const Call& call, std::span<const std::byte> mine) {
  NIBBLE_CHECK(mine.size() <= memory_->slot_bytes(), "a collective is cut into what slots hold");
  return share_with(call, [&](std::byte* slot) {
    if (!mine.empty()) std::memcpy(slot, mine.data(), mine.size());
    return mine.size();
  });
}

Result<Communicator::Shares> Communicator::publish(const Call& call, std::size_t bytes) {
  ++step_;
  ++counts_[static_cast<std::size_t>(call.kind)];
  GroupMemory::Seat& seat = memory_->seat(member_);
  seat.calls[step_ % 2] = call;
  seat.step.store(step_, std::memory_order_release);
  if (options_.links != nullptr) {
    options_.links->send({.group = in_world_, .member = member_, .step = step_, .call = call},
                         std::span(memory_->slot(member_, step_), bytes));
  }
  for (int i = 1; i < size(); ++i) NIBBLE_RETURN_IF_ERROR(wait_for((member_ + i) % size(), call));
  return Shares(*memory_, step_);
}

Result<std::vector<Communicator>> communicators_of(const Group& group, std::size_t slot_bytes,
                                                   const Communicator::Options& options) {
  NIBBLE_ASSIGN(const std::shared_ptr<GroupMemory> memory, GroupMemory::make(group.size(), slot_bytes));
  const int in_world = options.world != nullptr ? options.world->add(memory, group) : 0;
  if (options.links != nullptr) options.links->add_group(in_world, memory, group);
  std::vector<Communicator> members;
  for (int i = 0; i < group.size(); ++i) members.emplace_back(memory, group, i, options, in_world);
  return Result<std::vector<Communicator>>(std::move(members));
}

Status vote(Communicator& communicator, std::string_view what, std::uint64_t digest) {
  NIBBLE_ASSIGN(const Communicator::Shares votes,
                communicator.share({.kind = Call::Kind::vote, .count = sizeof digest},
                                   std::as_bytes(std::span(&digest, 1))));
  Group others;
  for (int i = 1; i < communicator.size(); ++i) {
    if (*votes.of<std::uint64_t>(i) != *votes.of<std::uint64_t>(0))
      others.members.push_back(communicator.group().members[static_cast<std::size_t>(i)]);
  }
  if (others.members.empty()) return {};
  return invalid_argument("rank " + std::to_string(communicator.group().members[0]) + " and " +
                          group_text(others) + " hold different " + std::string(what) +
                          "; start all ranks from the same program, model and options");
}

}  // namespace nibble
