// NCCL's part of the emulation: memory of the host that all ranks map by the id's name, those of other
// processes too. A merge goes through it in pieces, between which all ranks meet.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "comm/cuda/nccl.h"
#include "comm/rank.h"
#include "ops/cuda/emulation/emulation.h"

namespace nibble {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t piece_words = 1 << 16;

struct Shared {
  std::atomic<std::uint32_t> joined, arrived, turn;
  std::uint32_t words[most_ranks][piece_words];
};

// EMULATED_NCCL_DEADLINE_MS; emulated ranks of one CPU may be minutes apart.
std::chrono::milliseconds deadline() {
  const char* const asked = std::getenv("EMULATED_NCCL_DEADLINE_MS");
  return std::chrono::milliseconds(asked == nullptr ? 120000 : std::atoi(asked));
}

// What is queued may come to it when its communicator is gone.
class Merges {
 public:
  Merges(Shared* shared, int rank, int ranks) : shared_(shared), rank_(rank), ranks_(ranks) {}
  Merges(const Merges&) = delete;
  Merges& operator=(const Merges&) = delete;
  ~Merges() { munmap(shared_, sizeof(Shared)); }

  void join() {
    shared_->joined.fetch_add(1);
    await([&] { return shared_->joined.load() == static_cast<std::uint32_t>(ranks_); });
  }

  void merge(std::uint32_t* words, std::size_t count) {
    for (std::size_t begin = 0; begin < count; begin += piece_words) {
      const std::size_t some = std::min(piece_words, count - begin);
      std::memcpy(shared_->words[rank_], words + begin, some * sizeof(std::uint32_t));
      if (!meet()) return;
      for (std::size_t i = 0; i < some; ++i) {
        std::uint32_t sum = 0;
        for (int peer = 0; peer < ranks_; ++peer) sum += shared_->words[peer][i];
        words[begin + i] = sum;
      }
      if (!meet()) return;
    }
  }

  bool is_over() const { return is_over_; }
  void give_up() { is_over_ = true; }

 private:
  bool meet() {
    const std::uint32_t turn = shared_->turn.load();
    if (shared_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
      shared_->arrived = 0;
      shared_->turn.fetch_add(1);
      return true;
    }
    return await([&] { return shared_->turn.load() != turn; });
  }

  // Until `come` says so, or the deadline: the thread that would look at the clock is this one.
  template <class Come>
  bool await(const Come& come) {
    const Clock::time_point begin = Clock::now();
    while (!come() && !is_over_) {
      const auto waited = Clock::now() - begin;
      if (waited < std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(200));  // ranks may be more than CPUs
      }
      if (waited > deadline()) is_over_ = true;
    }
    return !is_over_;
  }

  Shared* const shared_;
  const int rank_, ranks_;
  std::atomic<bool> is_over_ = false;
};

}  // namespace

struct NcclCommunicator {
  std::shared_ptr<Merges> merges;
};

namespace {

int get_unique_id(NcclId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "%08x%08x%08x", random(), random(), random());
  return 0;
}

int comm_init_rank(NcclComm* made, int ranks, NcclId id, int rank) {
  const std::string name = "/nibble-nccl-" + std::string(id.bytes);
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0)
    emulation::stop("the host has no memory for an emulated NCCL");
  void* const at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) emulation::stop("the host has no memory for an emulated NCCL");
  *made = new NcclCommunicator{std::make_shared<Merges>(static_cast<Shared*>(at), rank, ranks)};
  (*made)->merges->join();
  if (rank == 0) shm_unlink(name.c_str());
  return 0;
}

int comm_abort(NcclComm comm) {
  comm->merges->give_up();
  delete comm;
  return 0;
}

int comm_get_async_error(NcclComm comm, int* error) {
  *error = comm->merges->is_over() ? 6 : 0;  // ncclRemoteError
  return 0;
}

int all_reduce(const void* from, void* to, std::size_t count, int type, int operation, NcclComm comm,
               cudaStream_t stream) {
  if (from != to || type != nccl_uint32 || operation != nccl_sum)
    emulation::stop("an all-reduce that the emulated NCCL does not know");
  const auto work = [merges = comm->merges, to, count] {
    emulation::finish_launches_of(emulation::current_device);
    merges->merge(static_cast<std::uint32_t*>(to), count);
  };
  if (emulation::capturing != nullptr) return emulation::capturing->push_back(work), 0;
  return static_cast<int>(emulation::queue(emulation::Call::launch, stream, work));
}

const char* get_error_string(int) { return "another rank did not come"; }

}  // namespace

Result<const NcclFunctions*> nccl_functions() {
  static constexpr NcclFunctions functions{.get_unique_id = get_unique_id,
                                           .comm_init_rank = comm_init_rank,
                                           .comm_abort = comm_abort,
                                           .comm_get_async_error = comm_get_async_error,
                                           .all_reduce = all_reduce,
                                           .get_error_string = get_error_string};
  return &functions;
}

}  // namespace nibble
