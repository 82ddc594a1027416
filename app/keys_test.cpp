#include "app/keys.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

std::vector<KeyKind> kinds(std::string_view bytes) {
  KeyDecoder decoder;
  decoder.feed(bytes);
  std::vector<KeyKind> found;
  while (const auto key = decoder.next()) found.push_back(key->kind);
  return found;
}

TEST(Keys, ArrowsHomeAndEndInTheirSpellings) {
  using K = KeyKind;
  EXPECT_EQ(kinds("\x1b[A\x1b[B\x1b[C\x1b[D"), (std::vector{K::up, K::down, K::right, K::left}));
  EXPECT_EQ(kinds("\x1bOA\x1bOB\x1bOC\x1bOD"), (std::vector{K::up, K::down, K::right, K::left}));
  EXPECT_EQ(kinds("\x1b[H\x1b[1~\x1b[7~\x1bOH"), (std::vector{K::home, K::home, K::home, K::home}));
  EXPECT_EQ(kinds("\x1b[F\x1b[4~\x1b[8~\x1bOF"), (std::vector{K::end, K::end, K::end, K::end}));
  EXPECT_EQ(kinds("\x1b[1;5C\x1b[1;5D\x1b"
                  "b\x1b"
                  "f"),
            (std::vector{K::word_right, K::word_left, K::word_left, K::word_right}));
  EXPECT_EQ(kinds("\x1b[3~\x7f\x08"), (std::vector{K::erase, K::backspace, K::backspace}));
}

TEST(Keys, UnknownSequencesAreSwallowedWhole) {
  EXPECT_EQ(kinds("\x1b[15~\x1b[<0;12;3Mx"),
            (std::vector{KeyKind::unknown, KeyKind::unknown, KeyKind::text}));
}

TEST(Keys, ACharacterCutInTwoWaitsForItsRest) {
  KeyDecoder decoder;
  decoder.feed("a\xE5\x8C");
  auto key = decoder.next();
  ASSERT_TRUE(key);
  EXPECT_EQ(key->text, "a");
  EXPECT_FALSE(decoder.next());
  decoder.feed("\x97");
  key = decoder.next();
  ASSERT_TRUE(key);
  EXPECT_EQ(key->text, "\xE5\x8C\x97");
}

TEST(Keys, BytesThatAreNotUtf8AreDropped) {
  KeyDecoder decoder;
  decoder.feed("a\xFF\xE5z");
  const auto key = decoder.next();
  ASSERT_TRUE(key);
  EXPECT_EQ(key->text, "az");
}

TEST(Keys, ALoneEscapeMayBeGivenUp) {
  KeyDecoder decoder;
  decoder.feed("\x1b");
  EXPECT_FALSE(decoder.next());
  EXPECT_TRUE(decoder.may_give_up());
  decoder.give_up();
  decoder.feed("[A");
  EXPECT_EQ(decoder.next()->text, "[A");
}

TEST(Keys, APasteIsOneKeyHoweverItArrives) {
  const std::string bytes = "x\x1b[200~one\r\ntwo\rthree\x1b[A\x03\x1b[201~y";
  KeyDecoder decoder;
  std::vector<Key> keys;
  for (const char c : bytes) {
    decoder.feed(std::string_view(&c, 1));
    while (auto key = decoder.next()) keys.push_back(*key);
  }
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[1].kind, KeyKind::paste);
  EXPECT_EQ(keys[1].text, "one\ntwo\nthree[A");  // line ends kept, control characters not
  EXPECT_EQ(keys[2].text, "y");
}

TEST(Keys, APasteThatIsStillComingIsNotGivenUp) {
  KeyDecoder decoder;
  decoder.feed("\x1b[200~half");
  EXPECT_FALSE(decoder.next());
  EXPECT_FALSE(decoder.may_give_up());
}

}  // namespace
}  // namespace nibble
