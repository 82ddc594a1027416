#include "ops/linear/input_parts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace nibble {
namespace {

constexpr int cols = 64;

TEST(InputParts, HaveEachInputOnceInGroupsAsAlikeAsTheyCanBe) {
  constexpr int most = 1100;
  std::vector<float> x(most * cols);
  std::vector<std::byte> room(prepared_bytes(cols, most));
  for (int count = 0; count <= most; ++count) {
    const InputParts parts(
        {.rows = {.first = x.data(), .count = count, .cols = cols}, .prepared = room.data()});
    int inputs = 0;
    for (int part = 0; part < parts.size(); ++part) {
      const DotInputs each = parts[part];
      ASSERT_EQ(parts.first_input(part), inputs);
      ASSERT_GT(each.rows.count, 0);
      ASSERT_LE(each.rows.count, most_inputs_of_part);
      if (part + 1 < parts.size()) {
        ASSERT_EQ(each.rows.count, parts.groups_a_part() * input_group);
      }
      inputs += each.rows.count;
    }
    ASSERT_EQ(inputs, count);
    ASSERT_EQ(parts.size(), (count + most_inputs_of_part - 1) / most_inputs_of_part);
  }
}

TEST(InputParts, PointToTheirVectorsAndTheirOwnRoom) {
  constexpr int count = 300, slots_a_row = 4;
  std::vector<float> x(count * cols);
  std::vector<std::int32_t> slots(count);
  std::iota(slots.rbegin(), slots.rend(), 0);
  std::vector<std::byte> room(prepared_bytes(cols, count));
  const InputRows in_order{.first = x.data(), .count = count, .cols = cols};
  const InputRows routed{
      .first = x.data(), .slots = slots.data(), .slots_a_row = slots_a_row, .count = count, .cols = cols};
  for (const InputRows& rows : {in_order, routed}) {
    const InputParts parts({.rows = rows, .prepared = room.data()});
    std::byte* free = room.data();
    for (int part = 0; part < parts.size(); ++part) {
      const DotInputs each = parts[part];
      for (int i = 0; i < each.rows.count; ++i) ASSERT_EQ(each.rows[i], rows[parts.first_input(part) + i]);
      ASSERT_EQ(each.prepared, free) << "behind the part before";
      free += prepared_bytes(cols, each.rows.count);
    }
    EXPECT_EQ(free, room.data() + room.size());
  }
}

}  // namespace
}  // namespace nibble
