#include "server/metrics_text.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(MetricsText, CommonLabelsComeFirstAndValuesAreEscaped) {
  MetricsText text({{"model_name", "a\"b\\c\nd\xC3\xA9"}});
  text.counter("x_total", "What it is.", 3);
  text.family("y", "gauge", "Another.");
  text.sample("y", {{"le", "1"}}, 0.5);
  EXPECT_EQ(text.take(),
            "# HELP x_total What it is.\n# TYPE x_total "
            "counter\nx_total{model_name=\"a\\\"b\\\\c\\nd\xC3\xA9\"} 3\n"
            "# HELP y Another.\n# TYPE y gauge\ny{model_name=\"a\\\"b\\\\c\\nd\xC3\xA9\",le=\"1\"} 0.5\n");
}

TEST(MetricsText, AHistogramIsCumulativeAndEndsAtInfinity) {
  Histogram histogram({0.5, 2, 10});
  for (const double value : {0.5, 0.1, 3.0, 100.0, 2.0}) histogram.observe(value);
  MetricsText text({});
  text.histogram("h", "Times.", histogram);
  EXPECT_EQ(text.take(),
            "# HELP h Times.\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 2\nh_bucket{le=\"2.0\"} 3\n"
            "h_bucket{le=\"10.0\"} 4\nh_bucket{le=\"+Inf\"} 5\nh_sum 105.6\nh_count 5\n");
}

TEST(MetricsText, BoundsGrowByOneTwoFive) {
  EXPECT_EQ(bounds_1_2_5(100), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(bounds_1_2_5(4096).back(), 2000);
  EXPECT_TRUE(bounds_1_2_5(0).empty());
}

}  // namespace
}  // namespace nibble
