#include "net/http_answer.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

struct Read {
  Status status;
  std::string body;
  bool complete = false;
  int code = 0;
};

Read read_in_pieces(std::string_view bytes, std::size_t piece, bool closes = false) {
  HttpAnswer answer;
  Read read;
  for (std::size_t at = 0; at < bytes.size() && read.status.ok(); at += piece)
    read.status = answer.take(bytes.substr(at, piece), [&](std::string_view part) { read.body += part; });
  if (closes && read.status.ok()) read.status = answer.end();
  read.complete = answer.complete();
  read.code = answer.status();
  return read;
}

TEST(HttpAnswer, IsTheSameHoweverItsBytesArrive) {
  const std::vector<std::pair<std::string_view, std::string_view>> answers = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n",
       "hello"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", ""},
      {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", ""},
  };
  for (const auto& [bytes, body] : answers) {
    for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
      const Read read = read_in_pieces(bytes, piece);
      EXPECT_TRUE(read.status.ok()) << read.status.message();
      EXPECT_TRUE(read.complete) << bytes << piece;
      EXPECT_EQ(read.body, body);
    }
  }
}

TEST(HttpAnswer, KeepsItsHeaders) {
  HttpAnswer answer;
  ASSERT_TRUE(
      answer.take("HTTP/1.1 302 Found\r\nLocation:  /x \r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n", {})
          .ok());
  EXPECT_EQ(answer.header("location"), "/x");
  EXPECT_EQ(answer.header("x-a"), "1");
  EXPECT_EQ(answer.header("x-b"), std::nullopt);
}

TEST(HttpAnswer, ThatHasNoEndIsAnError) {
  const std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
  std::string many;
  for (int i = 0; i < 100; ++i) many += interim;
  EXPECT_FALSE(read_in_pieces(many, 10).status.ok());
  std::string trailers = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  for (int i = 0; i < 10000; ++i) trailers += "A: bbbbbbbbbb\r\n";
  EXPECT_FALSE(read_in_pieces(trailers, 1000).status.ok());
}

TEST(HttpAnswer, WhoseLengthIsTwofoldOrCodedIsAnError) {
  for (const std::string_view bytes :
       {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1,1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\na"})
    EXPECT_FALSE(read_in_pieces(bytes, 7).status.ok()) << bytes;
  EXPECT_TRUE(
      read_in_pieces("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 7).complete);
}

TEST(HttpAnswer, OfAnOldServerEndsWithTheConnection) {
  const Read read = read_in_pieces("HTTP/1.0 200 OK\r\n\r\nall of it", 4, true);
  EXPECT_TRUE(read.status.ok() && read.complete);
  EXPECT_EQ(read.body, "all of it");
}

TEST(HttpAnswer, ThatIsNotWholeOrNoHttpIsAnError) {
  for (const std::string_view bytes :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab"}) {
    EXPECT_FALSE(read_in_pieces(bytes, 7, true).status.ok()) << bytes;
  }
  EXPECT_FALSE(read_in_pieces(std::string(70'000, 'a'), 1000).status.ok());
}

TEST(EventReader, GivesTheDataOfEachEvent) {
  const std::string_view bytes =
      ": a comment\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndata: \n\nid: 1\n\ndata: "
      "cut off";
  const std::vector<std::string> expected = {"{\"a\":1}", "two\nlines", ""};
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    EventReader reader;
    std::vector<std::string> found;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      EXPECT_TRUE(
          reader.take(bytes.substr(at, piece), [&](std::string_view data) { found.emplace_back(data); })
              .ok());
    }
    EXPECT_EQ(found, expected) << piece;
  }
}

}  // namespace
}  // namespace nibble
