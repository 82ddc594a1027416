// The text that Prometheus reads (exposition format 0.0.4), written by hand: no library that writes it is
// packaged for static linking.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

// How often a value fell below each bound.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void observe(double value);
  // `times` values that fell between the bound before this one and it, whose sum is added apart.
  void add(double bound, std::uint64_t times);
  void add_sum(double sum) { sum_ += sum; }

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<std::uint64_t>& counts() const { return counts_; }  // of each, the last beyond all bounds
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

// 1, 2, 5, 10, 20, ... up to `most`.
std::vector<double> bounds_1_2_5(std::int64_t most);

using MetricLabels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

class MetricsText {
 public:
  // `common` labels stand first in every sample.
  explicit MetricsText(MetricLabels common);

  // A family of one sample. The name of a counter ends in _total.
  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);
  // A family of several: sample() after family() of that name.
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, MetricLabels labels, double value);

  std::string take() { return std::move(text_); }

 private:
  std::string common_;
  std::string text_;
};

}  // namespace nibble
