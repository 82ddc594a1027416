// On two GPUs or more, or on emulated ones: rows are where the experts that they chose are, straight or
// through windows, and products where they are added.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "comm/cuda/peer_rooms.h"
#include "comm/cuda/peer_test_util.h"
#include "ops/cuda/absent.h"
#include "ops/cuda/device_test_util.h"
#include "ops/peer_gather/cuda/dispatch_rows_cuda.h"

namespace nibble {
namespace {

class DispatchOnGpus : public OnSeveralGpus {};

constexpr int places = 5, top_k = 3, experts = 8, words = 1028, hidden = 520, rounds = 7;

int count_of(int round, int group) { return (round + 2 * group) % (places + 1); }
// To experts of all ranks, of the first one alone where it has three, and a choice of the last one's.
std::int32_t id_of(int round, int group, int row, int k) {
  if (row >= count_of(round, group)) return -1;
  if (round % 3 == 1) return k;
  if (round % 3 == 2) return k == row % 3 ? experts - 1 : -1;
  return (group * 5 + row * 3 + k * 2) % experts;
}
std::uint32_t word_of(int round, int place, int word) {
  return static_cast<std::uint32_t>((round * 64 + place) * 4096 + word);
}
float product_of(int round, int slot, int column) {
  return static_cast<float>(round * 100000 + slot * 1000 + column);
}

template <class T>
std::vector<T> from_device(const std::byte* at, std::size_t count) {
  std::vector<T> host(count);
  cuda_check(cudaMemcpy(host.data(), at, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}
template <class T>
void to_device(std::byte* at, const std::vector<T>& host) {
  cuda_check(cudaMemcpy(at, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
}

// What a rank has in its room. Rows begin at multiples of 16 bytes.
struct Room {
  static constexpr std::size_t row_bytes = words * 4;
  std::size_t rows, ids, products, window, dispatch_windows;
  explicit Room(int groups)
      : rows(static_cast<std::size_t>(groups * places) * row_bytes),
        ids((static_cast<std::size_t>(groups * places * top_k) + 3) / 4 * 16),
        products(static_cast<std::size_t>(groups * places * top_k * hidden) * 4),
        window(static_cast<std::size_t>(places * top_k * hidden) * 4),
        dispatch_windows(dispatch_window_bytes(groups, row_bytes)) {}
  std::size_t all() const { return rows + ids + products + window + dispatch_windows; }
};

class Exchange {
 public:
  Exchange(const PeerRooms& rooms, int rank, int sharers, const SlotOwners& owners)
      : room_(rooms.of(rank)),
        sharers_(sharers),
        groups_(room_.ranks / sharers),
        group_(rank / sharers),
        sizes_(groups_),
        owners_(owners),
        rows_(rooms.content(rank)),
        ids_(rows_ + sizes_.rows),
        products_(ids_ + sizes_.ids),
        window_(products_ + sizes_.products),
        steps_(device_bytes(static_cast<std::size_t>(groups_ * dispatch_few_places) * 4, 0)) {}

  // One step: the rows that this rank is to multiply are there, and the products of its own rows.
  void run(int round, bool through_windows, cudaStream_t stream) {
    put_own_rows(round);
    // What goes straight to its place must not be there before that is cleared.
    if (!through_windows) {
      ASSERT_TRUE(meet_cuda(room_, stream).ok());
    }
    const DispatchRowsCudaArgs args{.rows = rows_,
                                    .row_bytes = Room::row_bytes,
                                    .expert_ids = reinterpret_cast<std::int32_t*>(ids_),
                                    .count = count_of(round, group_),
                                    .places = places,
                                    .top_k = top_k,
                                    .sharers = sharers_,
                                    .owners = owners_};
    const DispatchWindows windows{window_ + sizes_.window, steps_.as<std::uint32_t>()};
    const Status sent = through_windows ? dispatch_few_rows_cuda(room_, args, windows, stream)
                                        : dispatch_rows_cuda(room_, args, stream);
    ASSERT_TRUE(sent.ok()) << sent.message();
    cuda_check(cudaStreamSynchronize(stream));
    expect_rows(round);
    put_products(round);
    const Status combined =
        gather_products_cuda(room_,
                             {.products = reinterpret_cast<float*>(products_),
                              .expert_ids = reinterpret_cast<std::int32_t*>(ids_),
                              .slots = groups_ * places * top_k,
                              .hidden = hidden,
                              .owners = owners_,
                              .slots_a_group = places * top_k,
                              .sharers = sharers_,
                              .window = through_windows ? reinterpret_cast<float*>(window_) : nullptr},
                             stream);
    ASSERT_TRUE(combined.ok()) << combined.message();
    cuda_check(cudaStreamSynchronize(stream));
    expect_products(round);
  }

 private:
  int multiplies(int slot, std::int32_t id) const {
    if (id < 0) return -1;
    return owners_.by_turns ? slot % room_.ranks : id / (experts / room_.ranks);
  }

  void put_own_rows(int round) const {
    cuda_check(cudaMemset(rows_, 0xab, sizes_.rows + sizes_.ids));
    const int count = count_of(round, group_), first = group_ * places;
    std::vector<std::uint32_t> own;
    std::vector<std::int32_t> chosen;
    for (int row = 0; row < count; ++row) {
      for (int word = 0; word < words; ++word) own.push_back(word_of(round, first + row, word));
      for (int k = 0; k < top_k; ++k) chosen.push_back(id_of(round, group_, row, k));
    }
    to_device(rows_ + static_cast<std::size_t>(first) * Room::row_bytes, own);
    to_device(ids_ + first * top_k * 4, chosen);
  }

  void expect_rows(int round) const {
    const auto found = from_device<std::uint32_t>(rows_, sizes_.rows / 4);
    const auto ids = from_device<std::int32_t>(ids_, sizes_.ids / 4);
    for (int place = 0; place < groups_ * places; ++place) {
      const int of = place / places, row = place % places;
      bool comes = of == group_ && row < count_of(round, of);
      for (int slot = place * top_k; slot < (place + 1) * top_k; ++slot) {
        const std::int32_t id = id_of(round, of, row, slot % top_k);
        ASSERT_EQ(ids[static_cast<std::size_t>(slot)], id) << room_.ranks << " ranks, slot " << slot;
        comes |= multiplies(slot, id) == room_.rank;
      }
      for (int word = 0; word < words; ++word) {
        ASSERT_EQ(found[static_cast<std::size_t>(place * words + word)],
                  comes ? word_of(round, place, word) : 0xababababu)
            << room_.ranks << " ranks, rank " << room_.rank << ", round " << round << ", place " << place;
      }
    }
  }

  // Of the slots that this rank multiplies for; of others nothing.
  void put_products(int round) const {
    for (int slot = 0; slot < groups_ * places * top_k; ++slot) {
      const int place = slot / top_k;
      if (multiplies(slot, id_of(round, place / places, place % places, slot % top_k)) != room_.rank)
        continue;
      std::vector<float> own(hidden);
      for (int i = 0; i < hidden; ++i) own[static_cast<std::size_t>(i)] = product_of(round, slot, i);
      to_device(products_ + static_cast<std::size_t>(slot * hidden) * 4, own);
    }
  }

  void expect_products(int round) const {
    const auto found = from_device<float>(products_, sizes_.products / 4);
    const int first = group_ * places;
    for (int slot = first * top_k; slot < (first + count_of(round, group_)) * top_k; ++slot) {
      if (id_of(round, group_, slot / top_k - first, slot % top_k) < 0) continue;
      for (int i = 0; i < hidden; ++i) {
        ASSERT_EQ(found[static_cast<std::size_t>(slot * hidden + i)], product_of(round, slot, i))
            << room_.ranks << " ranks, rank " << room_.rank << ", round " << round << ", slot " << slot;
      }
    }
  }

  const PeerRoom& room_;
  int sharers_, groups_, group_;
  Room sizes_;
  SlotOwners owners_;
  std::byte *rows_, *ids_, *products_, *window_;
  DeviceBuffer steps_;
};

void expect_all_to_be_where_they_belong(const std::vector<int>& rank_counts,
                                        const std::vector<bool>& through_windows, int sharers = 1) {
  for (const int ranks : rank_counts) {
    const Room sizes(ranks / sharers);
    const auto made = PeerRooms::make(first_ranks(ranks).members, sizes.all(), patient);
    NIBBLE_CHECK(made.ok(), made.status().message());
    const PeerRooms& rooms = **made;
    for (int rank = 0; rank < ranks; ++rank) {
      const OnDevice on(rank);
      const std::size_t windows = sizes.window + sizes.dispatch_windows;
      cuda_check(cudaMemset(rooms.content(rank) + sizes.all() - windows, absent_bits & 0xff, windows));
      cuda_check(cudaDeviceSynchronize());
    }
    for (const bool by_turns : {false, true}) {
      SlotOwners owners{.by_turns = by_turns};
      for (int i = 0; i <= ranks; ++i) owners.first_expert[i] = i * (experts / ranks);
      on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
        Exchange exchange(rooms, rank, sharers, owners);
        for (int round = 0; round < rounds; ++round)
          exchange.run(round, through_windows[static_cast<std::size_t>(round) % through_windows.size()],
                       stream);
      });
      // The next ones' windows take turns anew.
      for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(rooms.failure(rank).ok());
    }
  }
}

TEST_F(DispatchOnGpus, RowsGoStraightToTheRanksWhoseExpertsTheyChose) {
  expect_all_to_be_where_they_belong(group_sizes(), {false});
}

TEST_F(DispatchOnGpus, FewRowsComeThroughWindows) {
  expect_all_to_be_where_they_belong(group_sizes(), {true});
}

TEST_F(DispatchOnGpus, StepsOfFewAndOfManyRowsTakeTurns) {
  expect_all_to_be_where_they_belong({group_sizes().back()}, {true, true, false, true, false});
}

// Two ranks of each group have its rows; they send them in turns, and both get the products.
TEST_F(DispatchOnGpus, GroupsOfRanksHaveTheSameRows) {
  if (devices_ < 4) GTEST_SKIP() << "two groups of two ranks need four GPUs";
  expect_all_to_be_where_they_belong({4}, {false}, 2);
  expect_all_to_be_where_they_belong({4}, {true, true, false, true}, 2);
}

TEST_F(DispatchOnGpus, ARankThatDoesNotComeIsNamedBothWays) {
  const Room sizes(2);
  for (const bool through_windows : {false, true}) {
    const auto made = PeerRooms::make(first_ranks(2).members, sizes.all(), std::chrono::milliseconds(200));
    NIBBLE_CHECK(made.ok(), made.status().message());
    const std::size_t windows = sizes.window + sizes.dispatch_windows;
    cuda_check(cudaMemset((*made)->content(0) + sizes.all() - windows, absent_bits & 0xff, windows));
    on_each_gpu(first_ranks(2), [&](int rank, cudaStream_t stream) {
      if (rank == 1) return;
      std::byte* const at = (*made)->content(0);
      DeviceBuffer steps = device_bytes(2 * dispatch_few_places * 4, 0);
      const DispatchRowsCudaArgs args{.rows = at,
                                      .row_bytes = Room::row_bytes,
                                      .expert_ids = reinterpret_cast<std::int32_t*>(at + sizes.rows),
                                      .places = places,
                                      .top_k = top_k};
      std::byte* const window = at + sizes.all() - sizes.dispatch_windows;
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE((through_windows ? dispatch_few_rows_cuda((*made)->of(0), args,
                                                              {window, steps.as<std::uint32_t>()}, stream)
                                     : dispatch_rows_cuda((*made)->of(0), args, stream))
                        .ok());
      }
      cuda_check(cudaStreamSynchronize(stream));
    });
    EXPECT_TRUE((*made)->failure(1).ok());
    const Status failure = (*made)->failure(0);
    ASSERT_FALSE(failure.ok());
    EXPECT_NE(failure.message().find("rank 1, which did not come"), std::string::npos) << failure.message();
  }
}

TEST_F(DispatchOnGpus, RefusesWhatItCannotSend) {
  const auto rooms = PeerRooms::make(first_ranks(2).members, 64, patient);
  NIBBLE_CHECK(rooms.ok(), rooms.status().message());
  const PeerRoom& room = (*rooms)->of(0);
  EXPECT_FALSE(dispatch_rows_cuda(room, {.row_bytes = 24, .top_k = 1}, nullptr).ok());
  EXPECT_FALSE(
      dispatch_rows_cuda(room, {.row_bytes = 16, .count = 2, .places = 1, .top_k = 1}, nullptr).ok());
  EXPECT_FALSE(dispatch_few_rows_cuda(room, {.row_bytes = 16, .places = dispatch_few_places + 1, .top_k = 1},
                                      {}, nullptr)
                   .ok());
}

}  // namespace
}  // namespace nibble
