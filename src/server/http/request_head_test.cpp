#include "server/http/request_head.h"

#include <gtest/gtest.h>

namespace nibble::http {
namespace {

struct Outcome {
  int status = 0;  // 0: accepted
  RequestHead head;
};

// As a connection does it: find the end, then parse.
Outcome read(std::string_view bytes, const HeadLimits& limits = {}) {
  const auto found = find_head(bytes, limits);
  if (const auto* refusal = std::get_if<Refusal>(&found)) return {refusal->status, {}};
  if (!std::holds_alternative<HeadExtent>(found)) return {-1, {}};
  const HeadExtent extent = std::get<HeadExtent>(found);
  auto parsed = parse_head(bytes.substr(extent.begin, extent.end - extent.begin), limits);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) return {refusal->status, {}};
  return {0, std::get<RequestHead>(parsed)};
}

Outcome with_fields(const std::string& fields) {
  return read("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n");
}
Outcome with_line(const std::string& line) { return read(line + "\r\nHost: a\r\n\r\n"); }

TEST(RequestHead, AnOrdinaryRequestIsReadWhole) {
  const Outcome outcome = read(
      "POST /v1/chat/completions?beta=1&x=%20 HTTP/1.1\r\nHost: "
      "localhost:8000\r\nContent-Type:application/json\r\n"
      "Authorization: \t Bearer secret  \r\nContent-Length: 12\r\n\r\nbody");
  ASSERT_EQ(outcome.status, 0);
  const RequestHead& head = outcome.head;
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/v1/chat/completions");
  EXPECT_EQ(head.query, "beta=1&x=%20");
  EXPECT_EQ(head.host, "localhost:8000");
  EXPECT_EQ(head.field("content-type"), "application/json");
  EXPECT_EQ(head.field("authorization"), "Bearer secret");
  EXPECT_EQ(head.framing, BodyFraming::length);
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_TRUE(head.keep_alive);
  EXPECT_FALSE(head.field("cookie").has_value());
}

TEST(RequestHead, APathIsDecodedOnce) {
  for (const auto& [sent, path] :
       std::vector<std::pair<std::string, std::string>>{{"/%68ealth", "/health"},
                                                        {"/a%20b", "/a b"},
                                                        {"/100%2525", "/100%25"},
                                                        {"/%e2%82%aC", "/\xe2\x82\xac"},
                                                        {"/v1/models/a%3Fb%23c", "/v1/models/a?b#c"},
                                                        {"/%2e%2E/metrics", "/../metrics"},
                                                        {"/a+b", "/a+b"},
                                                        {"http://h/%61?%zz=%", "/a"}}) {
    const Outcome outcome = with_line("GET " + sent + " HTTP/1.1");
    ASSERT_EQ(outcome.status, 0) << sent;
    EXPECT_EQ(outcome.head.path, path) << sent;
    EXPECT_EQ(outcome.head.escaped_slash, RequestHead::none) << sent;
  }
  EXPECT_EQ(with_line("GET /a?%zz=%20% HTTP/1.1").head.query, "%zz=%20%") << "a query stays as it was sent";
}

TEST(RequestHead, AnEscapedSlashIsTellableFromOneThatSeparatesSegments) {
  const Outcome outcome = with_line("GET /v1/models/org%2Fname%2fx HTTP/1.1");
  EXPECT_EQ(outcome.head.path, "/v1/models/org/name/x");
  EXPECT_EQ(outcome.head.escaped_slash, 14u);
  EXPECT_EQ(with_line("GET %2Fhealth HTTP/1.1").status, 400);
}

TEST(RequestHead, BadEscapesAreRefused) {
  for (const char* path : {"/%", "/%4", "/%4g", "/%g4", "/a%%41", "/% 41", "/%+1", "/%00", "/a%0d%0ab",
                           "/%1f", "/%7F", "/%ff", "/%e2%82", "/%c0%80", "/%ed%a0%80"})
    EXPECT_EQ(with_line(std::string("GET ") + path + " HTTP/1.1").status, 400) << path;
}

TEST(RequestHead, AnIncompleteHeadWaitsAndNeverReads) {
  const std::string whole = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_EQ(read(whole.substr(0, size)).status, -1) << size;
  EXPECT_EQ(read(whole).status, 0);
}

TEST(RequestHead, EmptyLinesBeforeARequestAreSkippedAndItsEndIsFound) {
  const std::string bytes = "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next";
  const HeadExtent extent = std::get<HeadExtent>(find_head(bytes, {}));
  EXPECT_EQ(extent.begin, 4u);
  EXPECT_EQ(bytes.substr(extent.end), "GET /next");
  EXPECT_EQ(read(bytes).status, 0);
}

TEST(RequestHead, WhatTwoReadersCouldUnderstandDifferentlyIsRefused) {
  for (const char* fields : {
           "Host: b\r\n",                                 // two hosts
           "Content-Length: 4\r\nContent-Length: 4\r\n",  // equal, still two
           "Content-Length: 4, 4\r\n",
           "Content-Length: +4\r\n",
           "Content-Length: -1\r\n",
           "Content-Length: 0x4\r\n",
           "Content-Length: 4 4\r\n",
           "Content-Length:\r\n",
           "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "X: a\r\n folded\r\n",
           " X: a\r\n",
           "\tX: a\r\n",  // obs-fold
           "X : a\r\n",
           "X\t: a\r\n",
           ": a\r\n",
           "no colon\r\n",
           "X(: a\r\n",
           "X\x01: a\r\n",
           "\xc3\xa4: a\r\n",
           "X: a\x01\r\n",
           "X: a\x7f\r\n",
           "X: a\rb\r\n",
           "X: a\nY: b\r\n",
           "X: a\n\r\n",
       }) {
    EXPECT_EQ(with_fields(fields).status, 400) << fields;
  }
  EXPECT_EQ(with_fields(std::string("X: a\0b\r\n", 8)).status, 400);
  EXPECT_EQ(with_fields(std::string("X\0: b\r\n", 7)).status, 400);
}

TEST(RequestHead, TransferEncodingIsChunkedOrNotServed) {
  EXPECT_EQ(with_fields("Transfer-Encoding: chunked\r\n").head.framing, BodyFraming::chunked);
  EXPECT_EQ(with_fields("transfer-encoding:  CHUNKED \r\n").head.framing, BodyFraming::chunked);
  for (const char* coding : {"gzip, chunked", "chunked, chunked", ", chunked", "gzip,\tCHUNKED"})
    EXPECT_EQ(with_fields(std::string("Transfer-Encoding: ") + coding + "\r\n").status, 501) << coding;
  for (const char* coding :
       {"xchunked", "chunked, identity", "chunked,", "gzip", "identity", "chunked;q=1", ""}) {
    EXPECT_EQ(with_fields(std::string("Transfer-Encoding: ") + coding + "\r\n").status, 400)
        << coding << ": where such a body ends nobody knows";
  }
  EXPECT_EQ(read("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").status, 400);
}

TEST(RequestHead, HostIsThereOnceAndIsAHost) {
  EXPECT_EQ(read("GET / HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(read("GET / HTTP/1.0\r\n\r\n").status, 0);
  const auto host = [](const std::string& value) {
    return read("GET / HTTP/1.1\r\nHost: " + value + "\r\n\r\n").status;
  };
  for (const char* good :
       {"localhost", "localhost:8000", "127.0.0.1:1", "[::1]", "[::1]:8000", "a-b.example", "a_b", "a:"})
    EXPECT_EQ(host(good), 0) << good;
  for (const char* bad :
       {"", "a/#@b", "a b", "a,b", "a:b", "a:123456", "[::1", "[]", "[::1]x", "a@b", "a?b", ":80", "a\\b"})
    EXPECT_EQ(host(bad), 400) << bad;
}

TEST(RequestHead, TargetsAreAPathOrAUrl) {
  EXPECT_EQ(with_line("GET http://example:1/a?b HTTP/1.1").head.path, "/a");
  EXPECT_EQ(with_line("GET http://example:1/a?b HTTP/1.1").head.host, "example:1");
  EXPECT_EQ(with_line("GET http://example HTTP/1.1").head.path, "/");
  EXPECT_EQ(with_line("GET http://example?q HTTP/1.1").head.path, "/");
  EXPECT_EQ(with_line("OPTIONS * HTTP/1.1").head.path, "*");
  for (const char* line :
       {"GET a HTTP/1.1", "GET * HTTP/1.1", "GET /a#b HTTP/1.1", "GET http:///a HTTP/1.1",
        "GET /\x80 HTTP/1.1", "GET /a b HTTP/1.1", "GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET /", "GET",
        "/ HTTP/1.1", "G(T / HTTP/1.1", "GET /\t HTTP/1.1", "GET / http/1.1", "GET / HTTP/1.11",
        "GET / HTTP/11", "GET / HTTP1.1", "GET / ", "CONNECT a:1 HTTP/1.1"}) {
    EXPECT_EQ(with_line(line).status, 400) << line;
  }
  EXPECT_EQ(with_line("GET / HTTP/2.0").status, 505);
  EXPECT_EQ(with_line("GET / HTTP/0.9").status, 505);
  EXPECT_EQ(with_line("BREW / HTTP/1.1").head.method,
            "BREW");  // whether it is known is not the head's business
}

TEST(RequestHead, SizesAreLimited) {
  const auto fields = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "X-" + std::to_string(i) + ": y\r\n";
    return text;
  };
  EXPECT_EQ(with_fields(fields(40)).status, 0);
  EXPECT_EQ(with_fields(fields(99)).status, 0);
  EXPECT_EQ(with_fields(fields(100)).status, 431);
  EXPECT_EQ(with_fields(fields(1000)).status, 431);
  EXPECT_EQ(with_fields("X: " + std::string(4096, 'a') + "\r\n").status, 0);
  EXPECT_EQ(with_fields("X: " + std::string(9000, 'a') + "\r\n").status, 431);
  EXPECT_EQ(with_fields("X: " + std::string(100'000, 'a')).status, 431);  // and without its end
  EXPECT_EQ(with_line("GET /" + std::string(9000, 'a') + " HTTP/1.1").status, 414);
  EXPECT_EQ(with_fields("Content-Length: 99999999999999999999\r\n").status, 413);
  std::string empty_lines;
  for (int i = 0; i < 40'000; ++i) empty_lines += "\r\n";
  EXPECT_EQ(read(empty_lines).status, 400);
}

TEST(RequestHead, ConnectionsStayOpenByTheVersionAndTheField) {
  EXPECT_TRUE(with_fields("").head.keep_alive);
  EXPECT_FALSE(with_fields("Connection: close\r\n").head.keep_alive);
  EXPECT_FALSE(with_fields("Connection: x, Close\r\n").head.keep_alive);
  EXPECT_FALSE(with_fields("Connection: x\r\nConnection: close\r\n").head.keep_alive);
  EXPECT_FALSE(read("GET / HTTP/1.0\r\n\r\n").head.keep_alive);
  EXPECT_TRUE(read("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").head.keep_alive);
}

TEST(RequestHead, ContinueIsExpectedOnlyBeforeABody) {
  EXPECT_TRUE(with_fields("Content-Length: 4\r\nExpect: 100-Continue\r\n").head.expects_continue);
  EXPECT_FALSE(with_fields("Expect: 100-continue\r\n").head.expects_continue);
  EXPECT_EQ(with_fields("Content-Length: 4\r\nExpect: miracles\r\n").status, 417);
}

}  // namespace
}  // namespace nibble::http
