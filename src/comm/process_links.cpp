#include "comm/process_links.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace nibble {
namespace {

using Clock = LinkSocket::Clock;
using std::chrono::milliseconds;

constexpr milliseconds between_sights{100};
// A process that does not take what it is sent; its socket holds megabytes.
constexpr milliseconds send_limit{10'000};
constexpr std::uint64_t most_step_bytes = std::uint64_t{1} << 30;

template <class T>
void put(std::vector<std::byte>& bytes, const T& value) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

}  // namespace

// Processes run the same program on the same kind of machine, so a header travels as it lies in memory.
struct ProcessLinks::Header {
  Kind kind = Kind::end;
  std::int32_t group = 0, member = 0;
  std::uint32_t unused = 0;
  std::uint64_t step = 0;
  Call call;
  std::uint64_t bytes = 0;  // that follow
};

ProcessLinks::ProcessLinks(const ProcessPlace& place, int ranks, MetProcesses met,
                           const ProcessSilence& silence)
    : place_(place),
      ranks_each_(ranks / place.count),
      silence_(silence),
      handles_(std::move(met.handles)),
      sights_(static_cast<std::size_t>(ranks)) {
  NIBBLE_CHECK(ranks_each_ * place.count == ranks &&
               met.sockets.size() == static_cast<std::size_t>(place.count));
  for (LinkSocket& socket : met.sockets) {
    std::unique_ptr<Link>& link = links_.emplace_back();
    if (!socket.is_open()) continue;
    link = std::make_unique<Link>();
    link->socket = std::move(socket);
    link->socket.limit_sends(send_limit);
  }
}

ProcessLinks::~ProcessLinks() { end(); }

void ProcessLinks::add_group(int number, std::shared_ptr<GroupMemory> memory, const Group& group) {
  NIBBLE_CHECK(own_ == nullptr && number == static_cast<int>(groups_.size()), "groups come in their order");
  groups_.push_back({std::move(memory), group});
}

void ProcessLinks::begin(const PeerWatch& own, Fault& fault) {
  NIBBLE_CHECK(own_ == nullptr);
  own_ = &own;
  fault_ = &fault;
  for (int process = 0; process < place_.count; ++process) {
    Link* const link = links_[static_cast<std::size_t>(process)].get();
    if (link == nullptr) continue;
    link->receiver = std::thread([this, process] {
      name_this_thread("engine-link");
      receive(process);
    });
  }
  teller_ = std::thread([this] {
    name_this_thread("engine-link");
    tell_sights();
  });
}

void ProcessLinks::end() {
  bool says_so = false;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ending_, true)) return;
    // All others take a process that just goes for lost, and so they should where it has failed.
    const bool failed = fault_ != nullptr && fault_->state.load(std::memory_order_acquire) != Fault::none;
    says_so = first_has_ended_ || (place_.index == 0 && own_ != nullptr && !failed);
  }
  tell_all();
  if (teller_.joinable()) teller_.join();
  for (int process = 0; process < place_.count; ++process) {
    Link* const link = links_[static_cast<std::size_t>(process)].get();
    if (link == nullptr) continue;
    if (says_so) send_to(process, {.kind = Kind::end, .call = {}}, {});
    link->socket.shut_down();
    if (link->receiver.joinable()) link->receiver.join();
  }
}

void ProcessLinks::send_to(int process, const Header& header, std::span<const std::byte> bytes) {
  Link& link = *links_[static_cast<std::size_t>(process)];
  Header own = header;
  own.bytes = bytes.size();
  Status sent;
  {
    const std::lock_guard lock(link.sending);
    sent = link.socket.send(std::as_bytes(std::span(&own, 1)), bytes);
  }
  if (!sent.ok()) lose(process);
}

void ProcessLinks::send(const Share& share, std::span<const std::byte> bytes) {
  const Group& group = groups_[static_cast<std::size_t>(share.group)].group;
  const Header header{.kind = Kind::share,
                      .group = share.group,
                      .member = share.member,
                      .step = share.step,
                      .call = share.call};
  int last = place_.index;
  for (const int rank : group.members) {  // ascending, so those of a process come together
    const int process = process_of(rank);
    if (process == place_.index || process == last) continue;
    last = process;
    send_to(process, header, bytes);
  }
}

void ProcessLinks::announce_ready() { send_to(0, {.kind = Kind::ready, .call = {}}, {}); }

Status ProcessLinks::wait_until_all_are_ready() {
  std::unique_lock lock(mutex_);
  const int others = place_.count - 1;
  changed_.wait(lock, [&] { return ready_ >= others || lost_ || ending_; });
  if (ready_ >= others) {
    ready_ -= others;
    return {};
  }
  return internal_error("a process ended before it was ready; its own output says why");
}

void ProcessLinks::announce_step(std::span<const std::byte> step) {
  NIBBLE_CHECK(place_.index == 0);
  for (int process = 1; process < place_.count; ++process)
    send_to(process, {.kind = Kind::step, .call = {}}, step);
}

Result<bool> ProcessLinks::wait_for_step(std::vector<std::byte>& step) {
  std::unique_lock lock(mutex_);
  step_came_.wait(lock, [&] { return !steps_.empty() || first_has_ended_ || lost_ || ending_; });
  // What was announced may still be run: the others may have run it.
  if (!steps_.empty()) {
    step = std::move(steps_.front());
    steps_.erase(steps_.begin());
    return true;
  }
  if (first_has_ended_ || ending_) return false;
  return internal_error("the connection to another process was lost");
}

bool ProcessLinks::is_silent(const Link& link, milliseconds longer_than) const {
  const Clock::rep heard = link.heard;
  return heard != 0 && Clock::now() - Clock::time_point(Clock::duration(heard)) > longer_than;
}

PeerSight ProcessLinks::look(int rank) const {
  NIBBLE_CHECK(!has(rank), "a process sees its own ranks itself");
  const Link& link = *links_[static_cast<std::size_t>(process_of(rank))];
  const std::lock_guard lock(mutex_);
  PeerSight sight = sights_[static_cast<std::size_t>(rank)];
  if (sight.rank < 0) sight.rank = rank;
  if (is_silent(link, silence_.still)) {
    sight.rank = rank;
    sight.works = false;
  }
  return sight;
}

void ProcessLinks::receive(int process) {
  Link& link = *links_[static_cast<std::size_t>(process)];
  while (true) {
    Header header;
    Status came = link.socket.receive(std::as_writable_bytes(std::span(&header, 1)));
    if (came.ok()) came = take(process, header);
    if (!came.ok()) break;
    link.heard = Clock::now().time_since_epoch().count();
    if (link.ended) return;
  }
  lose(process);
}

Status ProcessLinks::take(int process, const Header& header) {
  switch (header.kind) {
    case Kind::ready: {
      const std::lock_guard lock(mutex_);
      ++ready_;
      changed_.notify_all();
      return {};
    }
    case Kind::share: return take_share(process, header);
    case Kind::step:
      if (process != 0) break;
      return take_step(links_[0]->socket, header);
    case Kind::sights: return take_sights(process, header);
    case Kind::end: {
      links_[static_cast<std::size_t>(process)]->ended = true;
      const std::lock_guard lock(mutex_);
      // The others say so once the first has, which may not be known here yet.
      first_has_ended_ = true;
      tell_all();
      return {};
    }
  }
  return io_error("what came is nothing that a process sends");
}

Status ProcessLinks::take_share(int process, const Header& header) {
  const Status odd = io_error("a share that nobody waits for");
  if (header.group < 0 || header.group >= static_cast<int>(groups_.size())) return odd;
  const KnownGroup& known = groups_[static_cast<std::size_t>(header.group)];
  if (header.member < 0 || header.member >= known.group.size() ||
      process_of(known.group.members[static_cast<std::size_t>(header.member)]) != process)
    return odd;
  GroupMemory::Seat& seat = known.memory->seat(header.member);
  if (header.step != seat.step.load(std::memory_order_relaxed) + 1 ||
      header.bytes > known.memory->slot_bytes())
    return odd;
  NIBBLE_RETURN_IF_ERROR(links_[static_cast<std::size_t>(process)]->socket.receive(
      std::span(known.memory->slot(header.member, header.step), header.bytes)));
  seat.calls[header.step % 2] = header.call;
  seat.step.store(header.step, std::memory_order_release);
  return {};
}

Status ProcessLinks::take_step(const LinkSocket& socket, const Header& header) {
  if (header.bytes > most_step_bytes) return io_error("a step that is too large");
  std::vector<std::byte> step(header.bytes);
  NIBBLE_RETURN_IF_ERROR(socket.receive(step));
  const std::lock_guard lock(mutex_);
  steps_.push_back(std::move(step));
  step_came_.notify_all();
  return {};
}

void ProcessLinks::lose(int process) {
  bool is_first_loss = false;
  {
    const std::lock_guard lock(mutex_);
    // Once the first has ended the others go.
    if (ending_ || first_has_ended_) return;
    is_first_loss = !std::exchange(lost_, true);
  }
  if (fault_ != nullptr) {
    note_fault(*fault_, {.rank = static_cast<std::uint32_t>(first_rank()),
                         .peer = static_cast<std::uint32_t>(process * ranks_each_),
                         .kind = FaultNote::Kind::lost});
  }
  if (is_first_loss && when_lost_) when_lost_();
  tell_all();
}

void ProcessLinks::tell_all() {
  step_came_.notify_all();
  changed_.notify_all();
}

// --- How ranks get on ---

struct SightOnTheWire {
  std::int32_t of = 0, seen = 0, works = 0, threads = 0;
  std::uint64_t beats = 0;
};

std::vector<std::byte> ProcessLinks::own_sights() const {
  std::vector<std::byte> bytes;
  for (int rank = first_rank(); rank < first_rank() + ranks_each_; ++rank) {
    const PeerSight sight = own_->look(rank);
    put(bytes, SightOnTheWire{.of = rank,
                              .seen = sight.rank,
                              .works = sight.works ? 1 : 0,
                              .threads = static_cast<std::int32_t>(sight.cpu.size()),
                              .beats = sight.beats});
    for (const milliseconds each : sight.cpu) put(bytes, std::int64_t{each.count()});
  }
  return bytes;
}

Status ProcessLinks::take_sights(int process, const Header& header) {
  constexpr std::uint64_t most_bytes = 1 << 20;
  const Status odd = io_error("what came says nothing of ranks");
  if (header.bytes > most_bytes) return odd;
  std::vector<std::byte> bytes(header.bytes);
  NIBBLE_RETURN_IF_ERROR(links_[static_cast<std::size_t>(process)]->socket.receive(bytes));
  std::span<const std::byte> left(bytes);
  const auto take = [&](auto& value) {
    if (left.size() < sizeof value) return false;
    std::memcpy(&value, left.data(), sizeof value);
    left = left.subspan(sizeof value);
    return true;
  };
  const std::lock_guard lock(mutex_);
  while (!left.empty()) {
    SightOnTheWire sight;
    if (!take(sight) || sight.of < 0 || sight.of >= static_cast<int>(sights_.size()) ||
        process_of(sight.of) != process || sight.seen >= static_cast<int>(sights_.size()) ||
        sight.threads < 0)
      return odd;
    PeerSight& known = sights_[static_cast<std::size_t>(sight.of)];
    known = {.rank = sight.seen, .works = sight.works != 0, .beats = sight.beats, .cpu = {}};
    for (std::int32_t i = 0; i < sight.threads; ++i) {
      std::int64_t each = 0;
      if (!take(each)) return odd;
      known.cpu.emplace_back(each);
    }
  }
  return {};
}

void ProcessLinks::tell_sights() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();
    const std::vector<std::byte> sights = own_sights();
    for (int process = 0; process < place_.count; ++process) {
      const Link* const link = links_[static_cast<std::size_t>(process)].get();
      if (link == nullptr) continue;
      send_to(process, {.kind = Kind::sights, .call = {}}, sights);
      if (is_silent(*link, silence_.lost)) lose(process);
    }
    lock.lock();
    if (lost_) return;
    changed_.wait_for(lock, between_sights, [&] { return ending_ || lost_; });
  }
}

}  // namespace nibble
