#include "comm/cuda/rank_merge.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/cuda_check.h"
#include "tensor/device_buffer.h"

namespace nibble {

Result<NcclId> RankMerge::draw_id() {
  NIBBLE_ASSIGN(const NcclFunctions* const nccl, nccl_functions());
  NcclId id{};
  const int result = nccl->get_unique_id(&id);
  if (result == 0) return id;
  return internal_error(std::string("NCCL finds no interface for ranks to meet on: ") +
                        nccl->get_error_string(result) + "; NCCL_SOCKET_IFNAME names one");
}

// The library's other end of a communicator waits for the other ranks', which may be gone.
RankMerge::~RankMerge() { give_up(); }

Status RankMerge::check(int result, const char* what) const {
  if (result == 0) return {};
  return internal_error("rank " + std::to_string(rank_) + ": " + what +
                        " failed: " + nccl_->get_error_string(result) + "; NCCL_DEBUG=WARN says more");
}

Status RankMerge::join(const NcclId& id, cudaStream_t stream) {
  NIBBLE_ASSIGN(nccl_, nccl_functions());
  NIBBLE_RETURN_IF_ERROR(check(nccl_->comm_init_rank(&comm_, ranks_, id, rank_), "ncclCommInitRank"));
  // Word i is rank i's.
  std::vector<std::uint32_t> words(static_cast<std::size_t>(ranks_));
  const auto word_of = [](std::size_t rank) { return 0x80000001u + static_cast<std::uint32_t>(rank); };
  words[static_cast<std::size_t>(rank_)] = word_of(static_cast<std::size_t>(rank_));
  NIBBLE_ASSIGN(DeviceBuffer buffer, DeviceBuffer::copy_of(std::span<const std::uint32_t>(words)));
  NIBBLE_RETURN_IF_ERROR(merge(buffer.data(), buffer.size(), stream));
  cuda_check(cudaStreamSynchronize(stream));
  NIBBLE_RETURN_IF_ERROR(failure());
  buffer.copy_to(std::span(words));
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    if (words[rank] != word_of(rank))
      return internal_error("rank " + std::to_string(rank_) + ": NCCL gave another word than rank " +
                            std::to_string(rank) + "'s; this NCCL cannot be used");
  }
  return {};
}

Status RankMerge::merge(void* words, std::size_t bytes, cudaStream_t stream) const {
  NIBBLE_CHECK(comm_ != nullptr && bytes % sizeof(std::uint32_t) == 0);
  return check(
      nccl_->all_reduce(words, words, bytes / sizeof(std::uint32_t), nccl_uint32, nccl_sum, comm_, stream),
      "ncclAllReduce");
}

Status RankMerge::failure() const {
  if (comm_ == nullptr) return {};
  int error = 0;
  NIBBLE_RETURN_IF_ERROR(check(nccl_->comm_get_async_error(comm_, &error), "ncclCommGetAsyncError"));
  return check(error, "a merge of ranks");
}

void RankMerge::give_up() {
  if (comm_ != nullptr) nccl_->comm_abort(std::exchange(comm_, nullptr));
}

}  // namespace nibble
