#include "base/json_copy.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace nibble {
namespace {

std::string copied(const std::string& text) {
  const Result<JsonDocument> document = JsonDocument::parse(text);
  EXPECT_TRUE(document.ok()) << text;
  std::string out;
  JsonWriter writer(out);
  copy_json(document->root(), writer);
  EXPECT_TRUE(writer.complete());
  return out;
}

std::string random_json(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0: return "null";
    case 1: return random() % 2 == 0 ? "true" : "false";
    case 2: return std::to_string(static_cast<int>(random() % 2001) - 1000);
    case 3: return "0.5";
    case 4: return "\"\"";
    case 5: return R"("a,b:[{\"\\")";
    case 6: {
      std::string text = "[";
      for (unsigned i = random() % 4, n = 0; n < i; ++n)
        text += (n > 0 ? "," : "") + random_json(random, depth - 1);
      return text + "]";
    }
    default: {
      std::string text = "{";
      for (unsigned i = random() % 4, n = 0; n < i; ++n)
        text += (n > 0 ? ",\"k" : "\"k") + std::to_string(n) + "\":" + random_json(random, depth - 1);
      return text + "}";
    }
  }
}

TEST(JsonCopy, AnyValueComesOutAsItWentIn) {
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    const std::string text = random_json(random, 5);
    EXPECT_EQ(copied(text), text);
  }
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(copied(deep), deep);
}

std::size_t values_of(JsonValue value) {
  std::size_t count = 1;
  if (value.is_array())
    for (const JsonValue element : value.elements()) count += values_of(element);
  if (value.is_object())
    for (const auto& [name, member] : value.members()) count += 1 + values_of(member);
  return count;
}

TEST(JsonCopy, ATextTellsHowManyValuesItHasAndAnEmptyContainerCountsAsOneMore) {
  std::mt19937 random(2);
  for (int round = 0; round < 5000; ++round) {
    const std::string text = random_json(random, 5);
    const JsonDocument document = JsonDocument::parse(text).value();
    std::size_t empty = 0;
    for (std::size_t at = 0; at + 1 < text.size(); ++at)
      empty += text.substr(at, 2) == "[]" || text.substr(at, 2) == "{}" ? 1 : 0;
    EXPECT_EQ(most_json_values(text), values_of(document.root()) + empty) << text;
  }
  EXPECT_EQ(most_json_values("\"a,b,\\\",,\""), 1u);
  EXPECT_EQ(most_json_values(""), 1u);
  EXPECT_LE(most_json_values(std::string(1000, ',')), 1001u);  // no JSON, but a bound all the same
}

}  // namespace
}  // namespace nibble
