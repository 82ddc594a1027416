#include "base/json_writer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <simdjson.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace nibble {
namespace {

template <class T>
std::string written(const T& value) {
  std::string out;
  JsonWriter(out).value(value);
  return out;
}

TEST(JsonWriter, NestsAndSeparates) {
  std::string out = "data: ";
  JsonWriter writer(out);
  writer.begin_object().member("a", 1).key("b").begin_array().value("x").null().value(true);
  writer.begin_object().end_object().begin_array().end_array().raw("[1]").end_array();
  EXPECT_FALSE(writer.complete());
  writer.member("c", false).member("d", std::uint64_t{18446744073709551615u}).end_object();
  EXPECT_TRUE(writer.complete());
  EXPECT_EQ(out, R"(data: {"a":1,"b":["x",null,true,{},[],[1]],"c":false,"d":18446744073709551615})");
}

TEST(JsonWriter, EscapesWhatStringsMustNotHold) {
  EXPECT_EQ(written("say \"hi\"\\ \b\f\n\r\t\x01\x1f\x7f/"), R"("say \"hi\"\\ \b\f\n\r\t\u0001\u001f)"
                                                             "\x7f/\"");
  EXPECT_EQ(written(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(written("é 猫 😀"), "\"é 猫 😀\"");
}

TEST(JsonWriter, EachIllFormedPartBecomesOneReplacementCharacter) {
  EXPECT_EQ(written("a\xf1\x80\x80\xe1\x80\xc2"
                    "b\x80"),
            "\"a\uFFFD\uFFFD\uFFFDb\uFFFD\"");
  EXPECT_EQ(written("\xed\xa0\x80"), "\"\uFFFD\uFFFD\uFFFD\"") << "a surrogate";
  std::string out;
  JsonWriter(out).begin_object().member("\xff", 1).end_object();
  EXPECT_EQ(out, "{\"\uFFFD\":1}");
}

TEST(JsonWriter, NumbersAreShortAndReadBackTheSame) {
  EXPECT_EQ(written(0.1f), "0.1");
  EXPECT_EQ(written(0.1), "0.1");
  EXPECT_EQ(written(static_cast<double>(0.1f)), "0.10000000149011612");
  EXPECT_EQ(written(-0.0f), "-0.0");
  EXPECT_EQ(written(3.0), "3.0");
  EXPECT_EQ(written(1e22), "1e+22");
  EXPECT_EQ(written(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(written(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(written(static_cast<std::uint8_t>(200)), "200");
}

TEST(JsonWriter, WhatIsNoNumberBecomesNull) {
  EXPECT_EQ(written(std::nan("")), "null");
  EXPECT_EQ(written(std::numeric_limits<float>::infinity()), "null");
  EXPECT_EQ(written(-std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonWriterDeathTest, ACallOutOfPlaceIsABrokenInvariant) {
  std::string out;
  EXPECT_DEATH(JsonWriter(out).value(1).value(2), "one value in all");
  EXPECT_DEATH(JsonWriter(out).begin_object().value(1), "needs a key");
  EXPECT_DEATH(JsonWriter(out).begin_object().key("a").key("b"), "belongs into an object");
  EXPECT_DEATH(JsonWriter(out).begin_object().key("a").end_object(), "lone key");
  EXPECT_DEATH(JsonWriter(out).begin_array().key("a"), "belongs into an object");
  EXPECT_DEATH(JsonWriter(out).begin_array().end_object(), "only what is open");
  EXPECT_DEATH(JsonWriter(out).begin_object().end_array(), "only what is open");
  EXPECT_DEATH(JsonWriter(out).end_array(), "only what is open");
}

// Whatever goes in, simdjson reads it and finds the same values.

struct Tree;
using Elements = std::vector<Tree>;
using Members = std::vector<std::pair<std::string, Tree>>;
struct Tree {
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, float, double, std::string, Elements,
               Members>
      content;
};

// Bytes of every kind, and now and then pieces of UTF-8, so that ill-formed sequences stand beside good ones.
rc::Gen<std::string> any_text() {
  const auto piece =
      rc::gen::oneOf(rc::gen::map(rc::gen::arbitrary<char>(), [](char c) { return std::string(1, c); }),
                     rc::gen::map(rc::gen::inRange(0, 256),
                                  [](int byte) { return std::string(1, static_cast<char>(byte)); }),
                     rc::gen::element<std::string>("\"", "\\", "\n", "é", "猫", "😀", "\xe7\x8c",
                                                   "\xf0\x9f\x98", "\xed\xa0\x80"));
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(piece), [](const auto& pieces) {
    std::string text;
    for (const std::string& part : pieces) text += part;
    return text;
  });
}

template <class Float, class Bits>
rc::Gen<Tree> any_float() {
  return rc::gen::map(rc::gen::oneOf(rc::gen::arbitrary<Bits>(), rc::gen::inRange<Bits>(0, Bits(-1))),
                      [](Bits bits) { return Tree{std::bit_cast<Float>(bits)}; });
}

rc::Gen<Tree> any_tree(int depth) {
  const auto as_tree = [](auto content) { return Tree{std::move(content)}; };
  const rc::Gen<Tree> leaf = rc::gen::oneOf(
      rc::gen::just(Tree{nullptr}), rc::gen::map(rc::gen::arbitrary<bool>(), as_tree),
      rc::gen::map(rc::gen::arbitrary<std::int64_t>(), as_tree),
      rc::gen::map(rc::gen::arbitrary<std::uint64_t>(), as_tree), any_float<float, std::uint32_t>(),
      any_float<double, std::uint64_t>(), rc::gen::map(any_text(), as_tree));
  if (depth == 0) return leaf;
  const auto small = [](auto gen) { return rc::gen::resize(5, std::move(gen)); };
  return rc::gen::oneOf(
      leaf, rc::gen::map(small(rc::gen::container<Elements>(any_tree(depth - 1))), as_tree),
      rc::gen::map(small(rc::gen::container<Members>(rc::gen::pair(any_text(), any_tree(depth - 1)))),
                   as_tree));
}

void write(JsonWriter& writer, const Tree& tree) {
  if (std::holds_alternative<std::nullptr_t>(tree.content)) {
    writer.null();
  } else if (const auto* elements = std::get_if<Elements>(&tree.content)) {
    writer.begin_array();
    for (const Tree& element : *elements) write(writer, element);
    writer.end_array();
  } else if (const auto* members = std::get_if<Members>(&tree.content)) {
    writer.begin_object();
    for (const auto& [name, member] : *members) {
      writer.key(name);
      write(writer, member);
    }
    writer.end_object();
  } else {
    std::visit(
        [&writer](const auto& scalar) {
          if constexpr (requires { writer.value(scalar); }) writer.value(scalar);
        },
        tree.content);
  }
}

template <class Float>
bool same_float(Float wanted, simdjson::dom::element found) {
  if (!std::isfinite(wanted)) return found.is_null();
  const auto value = static_cast<Float>(found.get_double().value());
  return found.is_double() && value == wanted && std::signbit(value) == std::signbit(wanted);
}

bool same(const Tree& wanted, simdjson::dom::element found) {
  if (const auto* elements = std::get_if<Elements>(&wanted.content)) {
    if (!found.is_array() || found.get_array().size() != elements->size()) return false;
    auto element = elements->begin();
    for (const simdjson::dom::element child : found.get_array()) {
      if (!same(*element++, child)) return false;
    }
    return true;
  }
  if (const auto* members = std::get_if<Members>(&wanted.content)) {
    if (!found.is_object() || found.get_object().size() != members->size()) return false;
    auto member = members->begin();
    for (const simdjson::dom::key_value_pair child : found.get_object()) {
      if (to_valid_utf8(member->first) != child.key || !same(member->second, child.value)) return false;
      ++member;
    }
    return true;
  }
  if (const auto* text = std::get_if<std::string>(&wanted.content)) {
    return found.is_string() && found.get_string().value() == to_valid_utf8(*text);
  }
  if (const auto* number = std::get_if<float>(&wanted.content)) return same_float(*number, found);
  if (const auto* number = std::get_if<double>(&wanted.content)) return same_float(*number, found);
  if (const auto* number = std::get_if<std::int64_t>(&wanted.content)) {
    return found.is_int64() && found.get_int64().value() == *number;
  }
  if (const auto* number = std::get_if<std::uint64_t>(&wanted.content)) {
    return found.is_uint64() && found.get_uint64().value() == *number;
  }
  if (const auto* boolean = std::get_if<bool>(&wanted.content)) {
    return found.is_bool() && found.get_bool().value() == *boolean;
  }
  return found.is_null();
}

TEST(JsonWriterProperty, SimdjsonFindsTheSameValues) {
  const bool holds = rc::check([] {
    const Tree tree = *any_tree(3);
    std::string out;
    JsonWriter writer(out);
    write(writer, tree);
    RC_ASSERT(writer.complete());
    simdjson::dom::parser parser;
    simdjson::dom::element root;
    RC_ASSERT(parser.parse(out).get(root) == simdjson::SUCCESS);
    RC_ASSERT(same(tree, root));
  });
  EXPECT_TRUE(holds);
}

TEST(JsonWriterProperty, OurReaderFindsTheSameText) {
  const bool holds = rc::check([] {
    const std::string text = *any_text();
    const Result<JsonDocument> document = JsonDocument::parse(written(text));
    RC_ASSERT(document.ok());
    RC_ASSERT(document->root().as_string() == to_valid_utf8(text));
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace nibble
