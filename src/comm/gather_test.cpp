#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "comm/collectives.h"
#include "comm/comm_test_util.h"

namespace nibble {
namespace {

// Begins of `ranks` parts of 37 columns, some of them empty.
std::vector<std::int64_t> uneven(int ranks) {
  std::vector<std::int64_t> begins = {0};
  for (int i = 1; i < ranks; ++i) begins.push_back(i % 3 == 2 ? begins.back() : std::min(37, 9 * i));
  begins.push_back(37);
  return begins;
}

TEST(GatherColumns, PutsUnevenPartsSideBySideInAnyNumberOfPieces) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
    const std::vector<std::int64_t> begins = uneven(ranks);
    for (const int rows : {0, 1, 5, 300}) {
      const std::vector<float> whole =
          wide_floats(static_cast<unsigned>(rows), static_cast<std::size_t>(rows) * 37);
      on_each(members, [&](Communicator& member) {
        const auto me = static_cast<std::size_t>(member.member());
        std::vector<float> mine, all(whole.size(), 7.0f);
        for (int row = 0; row < rows; ++row)
          mine.insert(mine.end(), whole.begin() + row * 37 + begins[me],
                      whole.begin() + row * 37 + begins[me + 1]);
        const bool wants = me % 2 == 0;
        const Status status = gather_columns(
            member,
            {.rows = rows, .begins = begins, .mine = mine.data(), .all = wants ? all.data() : nullptr});
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(!wants || same_bits(all, whole)) << ranks << " ranks, " << rows << " rows";
      });
    }
  }
}

TEST(GatherRows, BringsEveryRowFromItsOwnerAndLeavesThoseOfNobody) {
  constexpr int width = 96;
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<Communicator> members = members_of(whole_world(ranks), 4096);
    for (const unsigned count : {0u, 1u, 9u, 200u}) {
      std::vector<std::uint8_t> owners;
      for (unsigned i = 0; i < count; ++i) {
        // All of one, then spread, and some of nobody.
        const unsigned owner = i < count / 2 ? 0 : i * 7 % static_cast<unsigned>(ranks);
        owners.push_back(i % 11 == 3 ? std::uint8_t{255} : static_cast<std::uint8_t>(owner));
      }
      const std::vector<float> whole = wide_floats(count, std::size_t{count} * width);
      on_each(members, [&](Communicator& member) {
        std::vector<float> rows(whole.size(), 3.0f), expected = whole;
        for (unsigned i = 0; i < count; ++i) {
          const auto at = static_cast<std::ptrdiff_t>(i) * width;
          if (owners[i] == member.member()) std::copy_n(whole.begin() + at, width, rows.begin() + at);
          if (owners[i] == 255) std::fill_n(expected.begin() + at, width, 3.0f);
        }
        const Status status = gather_rows(member, {.owners = owners, .width = width, .rows = rows.data()});
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(same_bits(rows, expected)) << ranks << " ranks, " << count << " rows";
      });
    }
  }
}

TEST(GatherColumns, MembersThatCallOtherThingsAreNamed) {
  std::vector<Communicator> members = members_of(whole_world(2), 4096);
  const std::vector<std::int64_t> begins = {0, 4, 8};
  on_each(members, [&](Communicator& member) {
    std::vector<float> mine(8, 1.0f), all(16);
    const int rows = member.member() == 0 ? 1 : 2;
    const Status status =
        gather_columns(member, {.rows = rows, .begins = begins, .mine = mine.data(), .all = all.data()});
    EXPECT_NE(status.message().find("gather_columns of 2 rows of 8"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace nibble
