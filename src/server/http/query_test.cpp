#include "server/http/query.h"

#include <gtest/gtest.h>

namespace nibble::http {
namespace {

TEST(Query, TheFirstValueOfANameIsDecodedOnce) {
  const std::string_view query = "a=1&b%62=x%20y+z&a=2&c&=5&d=%zz%2&e=%2541";
  EXPECT_EQ(query_value(query, "a"), "1");
  EXPECT_EQ(query_value(query, "bb"), "x y z");
  EXPECT_EQ(query_value(query, "c"), "");
  EXPECT_EQ(query_value(query, ""), "5");
  EXPECT_EQ(query_value(query, "d"), "%zz%2");
  EXPECT_EQ(query_value(query, "e"), "%41");
  EXPECT_FALSE(query_value(query, "x"));
  EXPECT_FALSE(query_value("", "a"));
  EXPECT_FALSE(query_value("&&", "a"));
}

}  // namespace
}  // namespace nibble::http
