#include "comm/cuda/peer_workspace.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace nibble {
namespace {

void fill_words(std::byte* at, std::size_t bytes, std::uint32_t word) {
  const std::vector<std::uint32_t> words(std::min<std::size_t>(bytes / 4, 1 << 20), word);
  for (std::size_t begin = 0; begin < bytes; begin += words.size() * 4) {
    cuda_check(cudaMemcpy(at + begin, words.data(), std::min(bytes - begin, words.size() * 4),
                          cudaMemcpyHostToDevice));
  }
}

Status check_shape(const Group& group, std::span<const int> devices, const PeerWorkspace::Shape& shape) {
  const int members = group.size();
  if (members != 2 && members != 4 && members != 8)
    return invalid_argument("collectives of GPUs run over 2, 4 or 8 ranks, not " + std::to_string(members));
  if (devices.size() != group.members.size())
    return invalid_argument(group_text(group) + " need a GPU each, and " + std::to_string(devices.size()) +
                            " are given");
  if (shape.most_rows < 1 || shape.hidden < 8 || shape.hidden % 8 != 0) {
    return invalid_argument("collectives take rows of a multiple of 8 columns, not " +
                            std::to_string(shape.most_rows) + " of " + std::to_string(shape.hidden));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<PeerWorkspace>> PeerWorkspace::make(const Group& group, std::span<const int> devices,
                                                           const Shape& shape) {
  NIBBLE_RETURN_IF_ERROR(check_shape(group, devices, shape));
  const PeerLayout layout{group.size(), shape.most_rows, shape.hidden};
  std::unique_ptr<PeerWorkspace> workspace(new PeerWorkspace);
  workspace->group_ = group;
  workspace->shape_ = shape;
  NIBBLE_ASSIGN(workspace->windows_, map_peer_memory({.here = devices}, layout.bytes()));
  const std::size_t rows = static_cast<std::size_t>(shape.most_rows);
  for (int i = 0; i < group.size(); ++i) {
    Member member{.device = devices[static_cast<std::size_t>(i)]};
    const OnDevice on(member.device);
    NIBBLE_ASSIGN(member.words, DeviceBuffer::allocate((rows + 1) * sizeof(std::uint32_t)));
    NIBBLE_ASSIGN(member.fault, PinnedBuffer::allocate(sizeof(PeerFault)));
    member.group = {.layout = layout,
                    .member = i,
                    .steps = member.words.as<std::uint32_t>(),
                    .given_up = member.words.as<std::uint32_t>() + rows,
                    .fault = new (member.fault.data()) PeerFault,
                    .deadline_ns = static_cast<std::uint64_t>(
                        std::chrono::duration_cast<std::chrono::nanoseconds>(shape.deadline).count())};
    for (int peer = 0; peer < group.size(); ++peer)
      member.group.windows[peer] = workspace->windows_->window(peer);
    workspace->members_.push_back(std::move(member));
  }
  workspace->arm();
  return Result<std::unique_ptr<PeerWorkspace>>(std::move(workspace));
}

PeerWorkspace::~PeerWorkspace() {
  for (Member& member : members_) {
    const OnDevice on(member.device);
    member.words = {};
    member.fault = {};
  }
}

void PeerWorkspace::arm() {
  for (Member& member : members_) {
    const OnDevice on(member.device);
    const PeerLayout& layout = member.group.layout;
    std::byte* const window = member.group.windows[member.group.member];
    fill_words(window, layout.rows_begin(), armed_sum);
    fill_words(window + layout.rows_begin(), layout.bytes() - layout.rows_begin(), armed_row);
    member.words.fill(0);
    *member.group.fault = {};
    cuda_check(cudaDeviceSynchronize());
  }
}

Status PeerWorkspace::failure(int index) const {
  const PeerFault& fault = *member(index).fault;
  if (*const_cast<const volatile std::uint32_t*>(&fault.state) == 0) return {};
  const auto rank = [&](std::uint32_t of) { return "rank " + std::to_string(group_.members[of]); };
  return internal_error(rank(fault.member) + " waited " + std::to_string(shape_.deadline.count()) +
                        " ms in all_reduce_norm, step " + std::to_string(fault.step) + " of row " +
                        std::to_string(fault.row) + ", for " + rank(fault.peer) +
                        ", which did not come; what it computed since is void");
}

}  // namespace nibble
