#include "comm/rank.h"

#include <algorithm>
#include <cstddef>

namespace nibble {
namespace {

Status check_world(int world) {
  if (world >= 1 && world <= most_ranks) return {};
  return invalid_argument("a world of " + std::to_string(world) + " ranks; it takes 1 to " +
                          std::to_string(most_ranks));
}

std::vector<int> share_of_cpus(std::span<const int> cpus, int world, int rank) {
  const int count = static_cast<int>(cpus.size());
  if (count < world) return {};
  const int least = count / world, larger = count % world;
  const int first = rank * least + std::min(rank, larger);
  const auto begin = cpus.begin() + first;
  return {begin, begin + least + (rank < larger ? 1 : 0)};
}

}  // namespace

Result<std::vector<Rank>> ranks_of_host(int world, std::span<const int> devices, std::span<const int> cpus) {
  NIBBLE_RETURN_IF_ERROR(check_world(world));
  if (!devices.empty() && devices.size() < static_cast<std::size_t>(world)) {
    return invalid_argument(std::to_string(world) + " ranks need as many GPUs, and there are " +
                            std::to_string(devices.size()) + "; take at most " +
                            std::to_string(devices.size()) + " ranks");
  }
  std::vector<Rank> ranks;
  for (int i = 0; i < world; ++i) {
    ranks.push_back({.index = i,
                     .world = world,
                     .device = devices.empty() ? -1 : devices[static_cast<std::size_t>(i)],
                     .cpus = share_of_cpus(cpus, world, i)});
  }
  return Result<std::vector<Rank>>(std::move(ranks));
}

int Group::member_of(int rank) const {
  const auto found = std::lower_bound(members.begin(), members.end(), rank);
  if (found == members.end() || *found != rank) return -1;
  return static_cast<int>(found - members.begin());
}

Result<std::vector<Group>> groups_of_world(int world, int size, GroupShape shape) {
  NIBBLE_RETURN_IF_ERROR(check_world(world));
  if (size < 1 || world % size != 0) {
    return invalid_argument("groups of " + std::to_string(size) + " ranks do not divide a world of " +
                            std::to_string(world));
  }
  const int count = world / size;
  std::vector<Group> groups(static_cast<std::size_t>(count));
  for (int rank = 0; rank < world; ++rank) {
    const int group = shape == GroupShape::neighbours ? rank / size : rank % count;
    groups[static_cast<std::size_t>(group)].members.push_back(rank);
  }
  return Result<std::vector<Group>>(std::move(groups));
}

std::string group_text(const Group& group) {
  std::string text = group.size() == 1 ? "rank " : "ranks ";
  for (int i = 0; i < group.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(group.members[static_cast<std::size_t>(i)]);
  return text;
}

}  // namespace nibble
