#include "server/http/body_reader.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::http {
namespace {

struct Outcome {
  int status = 0;  // 0: no refusal
  bool complete = false;
  std::string body;
  std::size_t taken = 0;
};

// The bytes as they come in pieces of `piece`.
Outcome read(const RequestHead& head, std::string_view bytes, std::size_t piece, std::uint64_t most = 1000) {
  auto started = BodyReader::start(head, most);
  if (const auto* refusal = std::get_if<Refusal>(&started)) return {.status = refusal->status};
  BodyReader reader = std::get<BodyReader>(std::move(started));
  Outcome outcome;
  for (std::size_t arrived = 0; !reader.complete() && arrived < bytes.size();) {
    arrived = std::min(arrived + piece, bytes.size());
    const auto taken = reader.take(bytes.substr(outcome.taken, arrived - outcome.taken));
    if (const auto* refusal = std::get_if<Refusal>(&taken)) return {.status = refusal->status};
    outcome.taken += std::get<std::size_t>(taken);
  }
  outcome.complete = reader.complete();
  outcome.body = reader.release();
  return outcome;
}

RequestHead length(std::uint64_t bytes) {
  return {.framing = bytes > 0 ? BodyFraming::length : BodyFraming::none, .content_length = bytes};
}
RequestHead chunked() { return {.framing = BodyFraming::chunked}; }

TEST(BodyReader, TakesTheBodyAndNothingOfWhatFollows) {
  for (std::size_t piece = 1; piece < 20; ++piece) {
    const Outcome plain = read(length(5), "helloGET / HTTP", piece);
    EXPECT_TRUE(plain.complete);
    EXPECT_EQ(plain.body, "hello");
    EXPECT_EQ(plain.taken, 5u);
    const std::string bytes = "3\r\nhel\r\n2;name=\"v\"\r\nlo\r\n0\r\nTrailer: x\r\n\r\n";
    const Outcome pieces = read(chunked(), bytes + "GET /", piece);
    EXPECT_TRUE(pieces.complete) << piece;
    EXPECT_EQ(pieces.body, "hello") << piece;
    EXPECT_EQ(pieces.taken, bytes.size()) << piece;
  }
  EXPECT_TRUE(read(length(0), "GET /", 5).complete);
}

TEST(BodyReader, ACutOffBodyIsNeverComplete) {
  const std::string bytes = "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(read(chunked(), bytes.substr(0, size), 4).complete) << size;
  EXPECT_FALSE(read(length(5), "hell", 4).complete);
}

TEST(BodyReader, AnAnnouncedSizeIsRefusedBeforeItIsRead) {
  EXPECT_EQ(read(length(1001), "", 1).status, 413);
  EXPECT_EQ(read(length(1000), "", 1).status, 0);
  EXPECT_EQ(read(chunked(), "3e9\r\n", 8).status, 413);
  EXPECT_EQ(read(chunked(), "3e8\r\n", 8).status, 0);
  EXPECT_EQ(read(chunked(), "fffffffffffffffff\r\n", 32).status, 413);
  EXPECT_EQ(read(chunked(), "1f4\r\n" + std::string(500, 'a') + "\r\n1f5\r\n", 600).status,
            413);  // all together
}

TEST(BodyReader, ChunksThatCouldBeReadDifferentlyAreRefused) {
  for (const char* bytes : {"-2\r\nhe\r\n",
                            "0x2\r\nhe\r\n",
                            "+2\r\nhe\r\n",
                            "\r\nhe\r\n",
                            ";x\r\n",
                            " 2\r\nhe\r\n",
                            "2 \r\nhe\r\n",
                            "2 x\r\nhe\r\n",
                            "2;\r\nhe\r\n",
                            "2;a[=b\r\nhe\r\n",
                            "2;a=\r\nhe\r\n",
                            "2;a=\"b\r\nhe\r\n",
                            "2;a=\"b\\\"\r\nhe\r\n",
                            "2;a b\r\nhe\r\n",
                            "2;a=b \r\nhe\r\n",
                            "g\r\n",
                            "2\nhe\r\n0\r\n\r\n",
                            "2\r\nhe\n0\r\n\r\n",
                            "2\r\nhell\r\n",
                            "2\r\nhe\r0\r\n",
                            "2;\x01\r\nhe\r\n",
                            "2\rx\nhe"}) {
    for (const std::size_t piece : {1, 3, 64})
      EXPECT_EQ(read(chunked(), bytes, piece).status, 400) << bytes << " in pieces of " << piece;
  }
  for (const char* line : {"X", "X : y", " X: y", ": y", "X: \x01", "X\t: y"})
    EXPECT_EQ(read(chunked(), "0\r\nA: b\r\n" + std::string(line) + "\r\n\r\n", 5).status, 400) << line;
  for (const char* extension : {"a", "a=b", " ; a", ";a=\"b;\\\"\"; c", "a = b;c"}) {
    const std::string line =
        std::string("0") + (extension[0] == ' ' || extension[0] == ';' ? "" : ";") + extension;
    EXPECT_TRUE(read(chunked(), line + "\r\n\r\n", 4).complete) << extension;
  }
  EXPECT_EQ(read(chunked(), std::string(300, '0'), 64).status, 400);
  EXPECT_EQ(read(chunked(), "0\r\n" + std::string(9000, 'a'), 512).status, 431);
  std::string trailer = "0\r\n";
  for (int i = 0; i < 2000; ++i) trailer += "X: y\r\n";
  EXPECT_EQ(read(chunked(), trailer, 512).status, 431);
}

}  // namespace
}  // namespace nibble::http
