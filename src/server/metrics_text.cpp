#include "server/metrics_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace nibble {
namespace {

void append_number(std::string& text, double value) {
  if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
    return;
  }
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// Of a label's value a backslash, a quote and a line feed are escaped; every other byte stands for itself.
void append_labels(std::string& text, MetricLabels labels) {
  for (const auto& [name, value] : labels) {
    if (!text.empty()) text += ',';
    text.append(name).append("=\"");
    for (const char c : value) {
      if (c == '\n') {
        text += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') text += '\\';
      text += c;
    }
    text += '"';
  }
}

}  // namespace

void Histogram::observe(double value) {
  ++counts_[static_cast<std::size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) -
                                     bounds_.begin())];
  sum_ += value;
}

void Histogram::add(double bound, std::uint64_t times) {
  counts_[static_cast<std::size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), bound) -
                                   bounds_.begin())] += times;
}

std::vector<double> bounds_1_2_5(std::int64_t most) {
  std::vector<double> bounds;
  for (std::int64_t power = 1; power <= most; power *= 10) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (factor * power <= most) bounds.push_back(static_cast<double>(factor * power));
    }
  }
  return bounds;
}

MetricsText::MetricsText(MetricLabels common) { append_labels(common_, common); }

void MetricsText::family(std::string_view name, std::string_view type, std::string_view help) {
  text_.append("# HELP ").append(name).append(" ").append(help);
  text_.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void MetricsText::sample(std::string_view name, MetricLabels labels, double value) {
  std::string all = common_;
  append_labels(all, labels);
  text_.append(name);
  if (!all.empty()) text_.append("{").append(all).append("}");
  text_ += ' ';
  append_number(text_, value);
  text_ += '\n';
}

void MetricsText::counter(std::string_view name, std::string_view help, double value) {
  NIBBLE_CHECK(name.ends_with("_total"), name);
  family(name, "counter", help);
  sample(name, {}, value);
}

void MetricsText::gauge(std::string_view name, std::string_view help, double value) {
  family(name, "gauge", help);
  sample(name, {}, value);
}

void MetricsText::histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
  family(name, "histogram", help);
  const std::string stem(name);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    below += histogram.counts()[i];
    std::string bound;
    append_number(bound, i < histogram.bounds().size() ? histogram.bounds()[i] : INFINITY);
    if (bound.find_first_of(".eI") == std::string::npos) bound += ".0";  // as Prometheus's clients spell it
    sample(stem + "_bucket", {{"le", bound}}, static_cast<double>(below));
  }
  sample(stem + "_sum", {}, histogram.sum());
  sample(stem + "_count", {}, static_cast<double>(below));
}

}  // namespace nibble
