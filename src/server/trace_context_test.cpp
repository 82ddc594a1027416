#include "server/trace_context.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

const std::string valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, ReadsTheIdsAndWhetherTheTraceIsSampled) {
  const auto trace = parse_traceparent(valid);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(trace->parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(trace->sampled);
  EXPECT_FALSE(parse_traceparent(valid.substr(0, 53) + "00")->sampled);
  EXPECT_TRUE(parse_traceparent("cc" + valid.substr(2) + "-more")) << "of a later version";
}

TEST(TraceContext, WhatIsNoTraceparentIsNone) {
  for (const std::string& text :
       {std::string(), std::string("00"), valid.substr(0, 54), valid + "-more", valid + "0",
        "ff" + valid.substr(2), "00-" + std::string(32, '0') + valid.substr(35),
        valid.substr(0, 36) + std::string(16, '0') + "-01",
        std::string("00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "00_" + valid.substr(3),
        valid.substr(0, 53) + "0x"})
    EXPECT_FALSE(parse_traceparent(text)) << text;
}

}  // namespace
}  // namespace nibble
