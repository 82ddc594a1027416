#include "comm/group_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <thread>

namespace nibble {
namespace {

std::string call_text(const Call& call) {
  std::string text = std::string(algorithm_name(call.algorithm)) + " " + call_name(call.kind) + " of " +
                     std::to_string(call.count);
  return call.width == 0 ? text : text + " rows of " + std::to_string(call.width);
}

Status status_of(const FaultNote& note) {
  const std::string rank = "rank " + std::to_string(note.rank), peer = "rank " + std::to_string(note.peer);
  const std::string step = "step " + std::to_string(note.step);
  switch (note.kind) {
    case FaultNote::Kind::differs:
      return internal_error("ranks disagree in " + step + ": " + rank + " calls " + call_text(note.call) +
                            ", " + peer + " calls " + call_text(note.peer_call) +
                            "; all ranks must make the same calls in the same order");
    case FaultNote::Kind::lost:
      return internal_error("the process of " + peer + " has gone, as " + rank +
                            " sees it; all ranks have stopped");
    case FaultNote::Kind::failed: return internal_error(rank + " has failed; all ranks have stopped");
    case FaultNote::Kind::did_not_come: break;
  }
  return internal_error(rank + " waited " + std::to_string(note.waited_ms) + " ms in " +
                        call_name(note.call.kind) + ", " + step + ", for " + peer +
                        ", which did not come; all ranks of the group have stopped");
}

}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "processes share these");

const char* call_name(Call::Kind kind) {
  switch (kind) {
    case Call::Kind::all_reduce: return "all_reduce";
    case Call::Kind::all_reduce_norm: return "all_reduce_norm";
    case Call::Kind::reduce_scatter: return "reduce_scatter";
    case Call::Kind::all_gather: return "all_gather";
    case Call::Kind::vote: return "vote";
    case Call::Kind::gather_columns: return "gather_columns";
    case Call::Kind::gather_rows: return "gather_rows";
    case Call::Kind::dispatch: return "dispatch";
    case Call::Kind::combine: return "combine";
  }
  return "unknown";
}

const char* algorithm_name(Algorithm algorithm) {
  return algorithm == Algorithm::one_shot ? "one-shot" : "two-shot";
}

void note_fault(Fault& fault, const FaultNote& note) {
  std::uint32_t expected = Fault::none;
  if (fault.state.compare_exchange_strong(expected, Fault::being_written)) {
    fault.note = note;
    fault.state.store(Fault::written, std::memory_order_release);
  }
  while (fault.state.load(std::memory_order_acquire) != Fault::written) std::this_thread::yield();
}

Status status_of(const Fault& fault) {
  if (fault.state.load(std::memory_order_acquire) != Fault::written) return {};
  return status_of(fault.note);
}

Result<std::shared_ptr<GroupMemory>> GroupMemory::make(int members, std::size_t slot_bytes) {
  if (members < 1 || members > most_ranks) {
    return invalid_argument("a group of " + std::to_string(members) + " ranks; it takes 1 to " +
                            std::to_string(most_ranks));
  }
  slot_bytes = (slot_bytes + 4095) / 4096 * 4096;
  const std::size_t bytes = slots_begin + 2 * static_cast<std::size_t>(members) * slot_bytes;
  // Shared, so that a process forked later sees the same bytes; pages are taken as they are used.
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return resource_exhausted("no " + std::to_string(bytes) + " bytes for what " + std::to_string(members) +
                              " ranks share: " + std::strerror(errno));
  }
  return std::shared_ptr<GroupMemory>(
      new GroupMemory(static_cast<std::byte*>(memory), bytes, members, slot_bytes));
}

GroupMemory::GroupMemory(std::byte* memory, std::size_t bytes, int members, std::size_t slot_bytes)
    : memory_(memory), bytes_(bytes), members_(members), slot_bytes_(slot_bytes) {
  new (memory_) Fault;
  for (int i = 0; i < members; ++i) new (&seat(i)) Seat;
}

GroupMemory::~GroupMemory() { munmap(memory_, bytes_); }

}  // namespace nibble
