// Ranks and groups as values. A rank is one thread with a device of its own (or, on a CPU, with CPUs of its
// own); all ranks together are the world. A group is some of them in ascending order: tensor-parallel
// attention, data-parallel attention and experts take groups of different shapes from one world.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace nibble {

inline constexpr int most_ranks = 8;

// A process of those that share a world's ranks, as many neighbouring ones each.
struct ProcessPlace {
  int index = 0;
  int count = 1;

  bool operator==(const ProcessPlace&) const = default;
};

struct Rank {
  int index = 0;          // in the world
  int world = 1;          // how many there are
  int device = -1;        // the GPU's index in this process; -1: none
  std::vector<int> cpus;  // that its thread may run on; empty: any

  bool operator==(const Rank&) const = default;
};

// The ranks of one host: rank i takes devices[i] (none: no devices) and its share of the CPUs, neighbours,
// the first shares one larger where they cannot be equal. Where there are fewer CPUs than ranks each rank
// may use all.
Result<std::vector<Rank>> ranks_of_host(int world, std::span<const int> devices, std::span<const int> cpus);

struct Group {
  std::vector<int> members;  // indices in the world, ascending

  int size() const { return static_cast<int>(members.size()); }
  // The place of a rank of the world among the members, or -1.
  int member_of(int rank) const;
  bool operator==(const Group&) const = default;
};

// How members of a group lie in the world: side by side (0 1, 2 3), or as far apart as can be (0 2, 1 3).
enum class GroupShape { neighbours, strided };

// The world in groups of `size`, each rank in exactly one.
Result<std::vector<Group>> groups_of_world(int world, int size, GroupShape shape);

// As messages name it: "ranks 0, 2".
std::string group_text(const Group& group);

}  // namespace nibble
