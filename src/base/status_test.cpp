#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace nibble {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return invalid_argument("odd");
  return n / 2;
}

Result<int> quarter(int n) {
  NIBBLE_ASSIGN(int once, half(n));
  NIBBLE_ASSIGN(int twice, half(once));
  return twice;
}

TEST(Result, CarriesAValueOrTheStatusOfTheFirstFailure) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_EQ(quarter(6).status().code(), StatusCode::invalid_argument);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> owner(std::make_unique<int>(7));
  std::unique_ptr<int> taken = std::move(owner).value();
  EXPECT_EQ(*taken, 7);
}

TEST(Status, ExitCodesTellTheUsersMistakeFromABrokenModelFromAFailure) {
  EXPECT_EQ(Status().exit_code(), 0);
  EXPECT_EQ(invalid_argument("x").exit_code(), 2);
  EXPECT_EQ(not_found("x").exit_code(), 3);
  EXPECT_EQ(broken_model("x").exit_code(), 3);
  EXPECT_EQ(io_error("x").exit_code(), 1);
  EXPECT_EQ(Status(StatusCode::cancelled, "x").exit_code(), 130);
}

TEST(Status, ContextIsPutInFrontOnceALevel) {
  EXPECT_EQ(io_error("disk full").with_context("a.safetensors").message(), "a.safetensors: disk full");
  EXPECT_TRUE(Status().with_context("a").ok());
}

TEST(CheckDeathTest, ABrokenInvariantSaysWhereAndWhy) {
  EXPECT_DEATH(NIBBLE_CHECK(1 + 1 == 3, "arithmetic"), "status_test.cpp.*1 \\+ 1 == 3; arithmetic");
  EXPECT_DEATH((void)quarter(6).value(), "odd");
}

}  // namespace
}  // namespace nibble
