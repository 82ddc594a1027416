#include "server/http/session.h"

#include <gtest/gtest.h>

namespace nibble::http {
namespace {

using namespace std::chrono_literals;

const Session::Time start{};

struct Served {
  std::vector<HttpRequest> requests;
  std::vector<int> refusals;
  std::string output;
};

// Answers every request with its path and every refusal with its status, as the bytes arrive.
void serve(Session& session, Served& served) {
  while (true) {
    auto next = session.next(start);
    if (std::holds_alternative<std::monostate>(next)) break;
    if (const auto* refusal = std::get_if<Refusal>(&next)) {
      served.refusals.push_back(refusal->status);
      session.answer({.status = refusal->status, .body = "{}"}, start);
      continue;
    }
    HttpRequest request = std::get<HttpRequest>(std::move(next));
    session.answer({.content_type = "text/plain", .body = request.head.path}, start);
    served.requests.push_back(std::move(request));
  }
  served.output += session.take_output();
}

Served serve_in_pieces(Session& session, std::string_view bytes, std::size_t piece) {
  Served served;
  for (std::size_t at = 0; at < bytes.size() && session.wants_bytes(); at += piece) {
    session.receive(bytes.substr(at, piece), start);
    serve(session, served);
  }
  return served;
}

HttpRequest only_request(Session& session, std::string_view bytes) {
  session.receive(bytes, start);
  return std::get<HttpRequest>(session.next(start));
}

TEST(Session, RequestsSentAheadAreAnsweredInOrderHoweverTheyArrive) {
  const std::string bytes =
      "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
      "POST /3 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n";
  std::string expected;
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    Session session({}, start);
    const Served served = serve_in_pieces(session, bytes, piece);
    ASSERT_EQ(served.requests.size(), 3u) << piece;
    EXPECT_EQ(served.requests[0].body, "abc");
    EXPECT_EQ(served.requests[1].head.path, "/2");
    EXPECT_EQ(served.requests[2].body, "de");
    EXPECT_FALSE(session.closing());
    if (piece == 1) expected = served.output;
    EXPECT_EQ(served.output, expected);
  }
  EXPECT_EQ(
      expected.substr(0, expected.find("HTTP", 1)),
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n/1");
}

TEST(Session, ASecondRequestWaitsForTheFirstAnswer) {
  Session session({}, start);
  const HttpRequest first =
      only_request(session, "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(first.head.path, "/1");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(session.next(start)));
  session.answer({}, start);
  EXPECT_EQ(std::get<HttpRequest>(session.next(start)).head.path, "/2");
}

TEST(Session, ABadFramingIsAnsweredOnceAndCloses) {
  for (const char* bytes :
       {"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\nHost: a\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    for (const std::size_t piece : {1, 7, 1000}) {
      Session session({}, start);
      const Served served = serve_in_pieces(session, bytes, piece);
      EXPECT_EQ(served.refusals.size(), 1u) << bytes;
      EXPECT_TRUE(served.requests.empty()) << bytes;
      EXPECT_TRUE(session.closing()) << bytes;
      EXPECT_FALSE(session.wants_bytes());
      EXPECT_NE(served.output.find("Connection: close"), std::string::npos);
      EXPECT_EQ(served.output.find("HTTP/1.1", 1), std::string::npos) << "one answer";
    }
  }
}

TEST(Session, ConnectionsCloseWhenTheClientSaysSo) {
  for (const auto& [head, closes] :
       {std::pair("HTTP/1.1\r\nHost: a", false), std::pair("HTTP/1.1\r\nHost: a\r\nConnection: close", true),
        std::pair("HTTP/1.0", true), std::pair("HTTP/1.0\r\nConnection: keep-alive", false)}) {
    Session session({}, start);
    only_request(session, std::string("GET / ") + head + "\r\n\r\n");
    EXPECT_FALSE(session.closing());
    session.answer({}, start);
    EXPECT_EQ(session.closing(), closes) << head;
    EXPECT_EQ(session.take_output().find("Connection: close") != std::string::npos, closes) << head;
  }
}

TEST(Session, StreamsAreChunkedAndUnchunkedForOldClients) {
  Session session({}, start);
  only_request(session, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  session.begin_stream({.content_type = "text/event-stream"});
  EXPECT_NE(session.take_output().find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  session.stream("data: 0123456789\n\n");
  EXPECT_EQ(session.take_output(), "12\r\ndata: 0123456789\n\n\r\n");
  session.stream("");
  EXPECT_FALSE(session.has_output());
  session.end_stream(start);
  EXPECT_EQ(session.take_output(), "0\r\n\r\n");
  EXPECT_FALSE(session.closing());

  Session old({}, start);
  only_request(old, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  old.begin_stream({});
  EXPECT_EQ(old.take_output().find("chunked"), std::string::npos);
  old.stream("abc");
  EXPECT_EQ(old.take_output(), "abc");
  old.end_stream(start);
  EXPECT_FALSE(old.has_output());
  EXPECT_TRUE(old.closing());
}

TEST(Session, ABrokenStreamHasNoProperEnd) {
  Session session({}, start);
  only_request(session, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  session.begin_stream({});
  session.take_output();
  session.break_stream();
  EXPECT_FALSE(session.has_output());
  EXPECT_TRUE(session.closing());
}

TEST(Session, HeadHasTheLengthAndNotTheBody) {
  Session session({}, start);
  only_request(session, "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n");
  session.answer({.body = "12345"}, start);
  const std::string output = session.take_output();
  EXPECT_NE(output.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_TRUE(output.ends_with("\r\n\r\n"));
}

TEST(Session, ARefusalOfABodyIsMadeKnowingTheHead) {
  Session session({.body_bytes = 10}, start, nullptr, "192.0.2.7");
  session.receive("HEAD /x HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\nContent-Length: 11\r\n\r\n",
                  start);
  EXPECT_EQ(std::get<Refusal>(session.next(start)).status, 413);
  EXPECT_EQ(session.refused_head().field("origin"), "https://a.example");
  EXPECT_EQ(session.refused_head().client, "192.0.2.7");
  session.answer({.status = 413, .body = "12345"}, start);
  EXPECT_TRUE(session.take_output().ends_with("\r\n\r\n")) << "the answer to a HEAD has no body";
  EXPECT_TRUE(session.closing());
}

TEST(Session, OfARequestThatCannotBeReadOnlyTheClientIsKnown) {
  Session session({}, start, nullptr, "192.0.2.7");
  session.receive("GET /x\r\n\r\n", start);
  EXPECT_EQ(std::get<Refusal>(session.next(start)).status, 400);
  EXPECT_EQ(session.refused_head().path, "");
  EXPECT_EQ(session.refused_head().client, "192.0.2.7");
}

TEST(Session, SaysWhatItAwaits) {
  using Awaits = Session::Awaits;
  Session session({}, start);
  EXPECT_EQ(session.awaits(), Awaits::head) << "who has sent nothing yet is waited for as for a head";
  session.receive("POST / HTTP/1.1\r\nHost: a\r\nContent-Le", start);
  session.next(start);
  EXPECT_EQ(session.awaits(), Awaits::head);
  session.receive("ngth: 2\r\n\r\na", start);
  session.next(start);
  EXPECT_EQ(session.awaits(), Awaits::body);
  session.receive("b", start);
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(session.next(start)));
  session.answer({}, start);
  EXPECT_EQ(session.awaits(), Awaits::request);
  session.receive("G", start);
  EXPECT_EQ(session.awaits(), Awaits::head);
}

TEST(Session, AnAnswerWithoutBodySaysNoLength) {
  Session session({}, start);
  only_request(session, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  session.answer({.status = 304, .fields = {{"ETag", "\"1\""}}}, start);
  const std::string output = session.take_output();
  EXPECT_TRUE(output.starts_with("HTTP/1.1 304 Not Modified\r\n")) << output;
  EXPECT_EQ(output.find("Content-Length"), std::string::npos);
  EXPECT_TRUE(output.ends_with("\r\n\r\n"));
  EXPECT_FALSE(session.closing());
}

TEST(Session, ContinueIsSentToWhoWaitsForIt) {
  Session session({}, start);
  session.receive("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n", start);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(session.next(start)));
  EXPECT_EQ(session.take_output(), "HTTP/1.1 100 Continue\r\n\r\n");
  session.receive("abc", start);
  EXPECT_EQ(std::get<HttpRequest>(session.next(start)).body, "abc");
  EXPECT_FALSE(session.has_output());
}

TEST(Session, AHalfClosedClientGetsItsWholeAnswer) {
  Session session({}, start);
  session.receive("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n", start);
  session.receive_end();
  EXPECT_EQ(std::get<HttpRequest>(session.next(start)).head.path, "/1");
  session.answer({}, start);
  EXPECT_NE(session.take_output().find("keep-alive"), std::string::npos);  // the second is still to come
  EXPECT_EQ(std::get<HttpRequest>(session.next(start)).head.path, "/2");
  session.begin_stream({});
  session.stream("whole");
  EXPECT_FALSE(session.closing());
  session.end_stream(start);
  EXPECT_TRUE(session.closing());
}

TEST(Session, HalfARequestAndThenNothingCloses) {
  for (const char* bytes : {"", "GET / HT", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na"}) {
    Session session({}, start);
    session.receive(bytes, start);
    session.receive_end();
    session.next(start);
    EXPECT_TRUE(session.closing()) << bytes;
    EXPECT_FALSE(session.has_output()) << bytes;
  }
}

TEST(Session, ARequestHasItsTimeHoweverItDrips) {
  const SessionLimits limits{.request_time = 30s, .idle_time = 120s};
  Session session(limits, start);
  EXPECT_EQ(session.deadline(), start + 120s);
  Session::Time now = start + 50s;
  const std::string bytes = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
  for (const char& byte : bytes) {
    session.receive(std::string_view(&byte, 1), now);
    session.next(now);
    now += 100ms;
    EXPECT_EQ(session.deadline(), start + 80s);
  }
  const auto expired = session.expire();
  EXPECT_EQ(std::get<Refusal>(expired).status, 408);
  session.answer({.status = 408}, now);
  EXPECT_TRUE(session.closing());

  Session idle(limits, start);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(idle.expire()));
  EXPECT_TRUE(idle.closing());
}

TEST(Session, AnAnswerTakesItsTime) {
  Session session({}, start);
  only_request(session, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_FALSE(session.deadline().has_value());
  session.answer({}, start + 300s);
  EXPECT_EQ(session.deadline(), start + 300s + SessionLimits{}.idle_time);
}

TEST(Session, WhatIsSentAheadIsBounded) {
  Session session({.ahead_bytes = 1000}, start);
  only_request(session, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  int pieces = 0;
  for (; session.wants_bytes() && pieces < 1000; ++pieces) session.receive(std::string(1000, 'x'), start);
  EXPECT_LT(pieces, 50);
}

// Refuses what is below /closed by its head alone.
const Screen closed = [](const RequestHead& head) -> std::optional<Response> {
  if (head.path != "/closed") return {};
  return Response{.status = 401, .body = "no"};
};

TEST(Session, AScreenedBodyIsReadAndNotKept) {
  Session session({}, start, &closed);
  session.receive("POST /closed HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", start);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(std::holds_alternative<std::monostate>(session.next(start)));
    EXPECT_FALSE(session.has_output());
    EXPECT_LT(session.held(), 1000u);
    session.receive(std::string(100'000, 'x'), start);
  }
  session.receive("GET /open HTTP/1.1\r\nHost: a\r\n\r\n", start);
  const auto next = session.next(start);
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(next)) << "the connection goes on";
  EXPECT_EQ(std::get<HttpRequest>(next).head.path, "/open");
  EXPECT_EQ(session.take_output().substr(0, 12), "HTTP/1.1 401");
}

TEST(Session, AScreenedBodyThatIsTooLargeIsRefusedForThat) {
  Session session({.body_bytes = 10}, start, &closed);
  session.receive("POST /closed HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", start);
  EXPECT_EQ(std::get<Refusal>(session.next(start)).status, 413);
}

TEST(Session, AClientThatWaitsFor100IsScreenedAtOnceAndTheConnectionEnds) {
  Session session({}, start, &closed);
  session.receive("POST /closed HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
                  start);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(session.next(start)));
  const std::string output = session.take_output();
  EXPECT_EQ(output.substr(0, 12), "HTTP/1.1 401");
  EXPECT_NE(output.find("Connection: close"), output.npos);
  EXPECT_TRUE(session.closing());
}

TEST(Session, AProbeIsAnInterimAnswerOrACommentInAStream) {
  Session session({}, start);
  session.probe(":\n\n");
  EXPECT_FALSE(session.has_output()) << "nobody waits";
  only_request(session, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  session.receive_end();
  session.probe(":\n\n");
  EXPECT_EQ(session.take_output(), "HTTP/1.1 100 Continue\r\n\r\n");
  session.begin_stream({});
  session.take_output();
  session.probe(":\n\n");
  EXPECT_EQ(session.take_output(), "3\r\n:\n\n\r\n");
}

TEST(Session, AProbeSaysNothingToAClientThatKnowsNoInterimAnswers) {
  Session session({}, start);
  only_request(session, "GET / HTTP/1.0\r\n\r\n");
  session.probe(":\n\n");
  EXPECT_FALSE(session.has_output());
}

TEST(Response, FieldsCannotSmuggleLines) {
  EXPECT_TRUE(is_field("X-Nibble-Ignored", "a, b\xC3\xA4"));
  EXPECT_FALSE(is_field("X", "a\r\nSet-Cookie: b"));
  EXPECT_FALSE(is_field("X", "a\n"));
  EXPECT_FALSE(is_field("X", std::string_view("a\0", 2)));
  EXPECT_FALSE(is_field("X: y", "a"));
  EXPECT_FALSE(is_field("", "a"));
}

}  // namespace
}  // namespace nibble::http
