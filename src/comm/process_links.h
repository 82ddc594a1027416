// Connections between the processes of a world, one between any two. Each process has neighbouring ranks.
// What a member of a group puts down goes to each process that has another member, and is put down there in
// the same slot of that process's own memory: who waits for it cannot tell where it came from.
//
// Why a slot may be overwritten as a share arrives. A member sends its step n + 2 only after it has seen step
// n + 1 of every member. Whoever has put down step n + 1 no longer reads step n.
//
// The first process says which step comes next; the others wait for that. Ten times a second each process
// tells the others how its ranks get on, so a process that hangs or is stopped is found out like a thread. A
// process that ends without saying so is lost: that is a failure of the world.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "comm/group_memory.h"
#include "comm/link_socket.h"
#include "comm/peer_watch.h"
#include "comm/process_meeting.h"
#include "comm/rank.h"

namespace nibble {

// How long a process may be silent that has said something once, and says something ten times a second.
struct ProcessSilence {
  std::chrono::milliseconds still{1000};  // then none of its threads seems to work
  std::chrono::milliseconds lost{20'000};
};

class ProcessLinks final : public PeerWatch {
 public:
  // There are so many ranks in the world, as many in each process.
  ProcessLinks(const ProcessPlace& place, int ranks, MetProcesses met, const ProcessSilence& silence = {});
  ProcessLinks(const ProcessLinks&) = delete;
  ProcessLinks& operator=(const ProcessLinks&) = delete;
  ~ProcessLinks() override;

  int first_rank() const { return place_.index * ranks_each_; }
  int ranks_here() const { return ranks_each_; }
  // Null where processes may be on several hosts.
  HandleExchange* handles() const { return handles_.get(); }
  bool has(int rank) const { return process_of(rank) == place_.index; }
  bool are_together(int rank, int other) const { return process_of(rank) == process_of(other); }

  // A group, by the number that it has in every process; all of them before begin().
  void add_group(int number, std::shared_ptr<GroupMemory> memory, const Group& group);
  // From here on things arrive. `own` sees this process's ranks; `fault` is the world's. Both outlive end().
  void begin(const PeerWatch& own, Fault& fault);
  // `lost` is called once a process has been lost, whatever this process's ranks do; before begin().
  void when_lost(std::function<void()> lost) { when_lost_ = std::move(lost); }
  // Waits until nothing arrives any more. Says so to all others where it is meant to be: the first process
  // has no more steps, or has said so itself.
  void end();

  struct Share {
    int group = 0;  // its number
    int member = 0;
    std::uint64_t step = 0;
    Call call;
  };
  // What a member of this process has put down. What cannot be sent is a failure of the world.
  void send(const Share& share, std::span<const std::byte> bytes);

  // By the others, once they can take steps; and by the first, which waits for all of them. Where they have
  // to wait for each other before that, they say so as often.
  void announce_ready();
  Status wait_until_all_are_ready();

  // By the first process, to all others.
  void announce_step(std::span<const std::byte> step);
  // By the others: the next one that was announced. False: the first process has ended.
  Result<bool> wait_for_step(std::vector<std::byte>& step);

  // What its process said last of a rank of another one.
  PeerSight look(int rank) const override;

 private:
  enum class Kind : std::uint32_t { ready, share, step, sights, end };
  struct Header;
  struct Link {
    LinkSocket socket;
    std::mutex sending;
    std::thread receiver;
    // When something last came; 0: nothing yet, as it still loads.
    std::atomic<LinkSocket::Clock::rep> heard{0};
    bool ended = false;  // it has said so; of the receiver
  };
  struct KnownGroup {
    std::shared_ptr<GroupMemory> memory;
    Group group;
  };

  // Whether it has been silent for longer than that, after it had said something.
  bool is_silent(const Link& link, std::chrono::milliseconds longer_than) const;
  int process_of(int rank) const { return rank / ranks_each_; }
  void send_to(int process, const Header& header, std::span<const std::byte> bytes);
  void receive(int process);
  Status take(int process, const Header& header);
  Status take_share(int process, const Header& header);
  Status take_step(const LinkSocket& socket, const Header& header);
  Status take_sights(int process, const Header& header);
  void lose(int process);
  void tell_all();  // who waits for anything below
  void tell_sights();
  std::vector<std::byte> own_sights() const;

  const ProcessPlace place_;
  const int ranks_each_;
  const ProcessSilence silence_;
  const std::unique_ptr<HandleExchange> handles_;
  std::vector<std::unique_ptr<Link>> links_;  // [processes]; null: this one
  std::vector<KnownGroup> groups_;
  std::function<void()> when_lost_;
  const PeerWatch* own_ = nullptr;
  Fault* fault_ = nullptr;

  mutable std::mutex mutex_;  // of all below
  // Apart, for a notification may wait for a thread that was notified and stands still, once others wait too.
  // Who runs the steps waits for them alone, and may stand still.
  std::condition_variable step_came_, changed_;
  std::vector<PeerSight> sights_;              // [ranks of the world]
  std::vector<std::vector<std::byte>> steps_;  // announced and not yet taken
  int ready_ = 0;                              // processes that are, and not yet waited for
  bool first_has_ended_ = false, lost_ = false, ending_ = false;
  std::thread teller_;
};

}  // namespace nibble
