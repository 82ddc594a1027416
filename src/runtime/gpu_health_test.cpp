#include "runtime/gpu_health.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

GpuHealth good_health() {
  return {.sm_mhz = Reading{1980, 1980},
          .memory_mhz = Reading{3201, 3201},
          .link_generation = Reading{5, 5},
          .link_width = Reading{16, 16},
          .slowdown = 0,
          .ecc = true,
          .corrected = 3,
          .uncorrected = 0,
          .remap_pending = false,
          .remap_failed = false,
          .celsius = 41};
}

// By name; a GPU's lines come in this order.
enum Line { clocks_line, slowdown_line, memory_line, link_line };

GpuVerdict verdict(const GpuHealth& health, Line line) { return judge(health)[line].verdict; }

TEST(GpuHealth, FindsNothingWrongWithAHealthyGpu) {
  for (const GpuCheck& check : judge(good_health())) {
    EXPECT_EQ(check.verdict, GpuVerdict::ok) << check.name;
    EXPECT_TRUE(check.advice.empty());
  }
  EXPECT_EQ(judge(good_health())[clocks_line].found, "SM 1980 of 1980 MHz, memory 3201 of 3201 MHz, 41 C");
}

TEST(GpuHealth, AnIdleGpuMayBeSlow) {
  GpuHealth health = good_health();
  health.memory_mhz->now = 1500;
  EXPECT_EQ(verdict(health, clocks_line), GpuVerdict::warn);
  health.slowdown = 0x1;
  EXPECT_EQ(verdict(health, clocks_line), GpuVerdict::ok);
  EXPECT_EQ(verdict(health, slowdown_line), GpuVerdict::ok);
}

TEST(GpuHealth, NamesWhatHoldsClocksDown) {
  GpuHealth health = good_health();
  health.slowdown = 0x4 | 0x80;
  EXPECT_EQ(verdict(health, slowdown_line), GpuVerdict::warn);
  EXPECT_EQ(judge(health)[slowdown_line].found, "held down by the power limit, the power supply's brake");
}

TEST(GpuHealth, JudgesErrorsOfTheMemoryByWhatTheyCost) {
  GpuHealth health = good_health();
  health.remap_pending = true;
  EXPECT_EQ(verdict(health, memory_line), GpuVerdict::warn);
  health.uncorrected = 1;
  EXPECT_EQ(verdict(health, memory_line), GpuVerdict::fail);
  health = good_health();
  health.remap_failed = true;
  EXPECT_EQ(verdict(health, memory_line), GpuVerdict::fail);
  health.ecc = false;
  EXPECT_EQ(verdict(health, memory_line), GpuVerdict::warn);
  health.ecc.reset();
  EXPECT_EQ(verdict(health, memory_line), GpuVerdict::skip);
}

TEST(GpuHealth, ANarrowLinkIsWarnedOf) {
  GpuHealth health = good_health();
  health.link_width->now = 8;
  EXPECT_EQ(verdict(health, link_line), GpuVerdict::warn);
}

TEST(GpuHealth, WhatTheDriverDoesNotSayIsLeftOut) {
  for (const GpuCheck& check : judge({})) EXPECT_EQ(check.verdict, GpuVerdict::skip) << check.name;
}

TEST(GpuHealth, IsReadFromTheDriversLibrary) {
  const Result<GpuHealth> health = read_gpu_health("00000000:0a:00.0", NIBBLE_STAND_IN_NVML);
  ASSERT_TRUE(health.ok()) << health.status().message();
  EXPECT_EQ(health->sm_mhz->now, 1755u);
  EXPECT_EQ(health->sm_mhz->most, 1980u);
  EXPECT_EQ(health->memory_mhz->now, 1593u);
  EXPECT_EQ(health->link_width->now, 8u);
  EXPECT_EQ(health->slowdown, 0x44u);
  EXPECT_EQ(health->ecc, true);
  EXPECT_EQ(health->corrected, 12u);
  EXPECT_EQ(health->uncorrected, 1u);
  EXPECT_FALSE(health->remap_failed.has_value());
  EXPECT_FALSE(health->celsius.has_value());
}

TEST(GpuHealth, AGpuOrALibraryThatIsNotThereIsNoError) {
  EXPECT_EQ(read_gpu_health("00000000:0b:00.0", NIBBLE_STAND_IN_NVML).status().code(), StatusCode::not_found);
  EXPECT_EQ(read_gpu_health("00000000:0a:00.0", "libno-such-library.so.1").status().code(),
            StatusCode::not_found);
}

}  // namespace
}  // namespace nibble
