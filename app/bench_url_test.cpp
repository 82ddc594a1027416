#include "app/bench_url.h"

#include <gtest/gtest.h>

#include "app/http_client.h"

namespace nibble {
namespace {

TEST(Url, IsAServersAddressWithOrWithoutItsApisPath) {
  for (const char* url : {"http://host:81", "http://host:81/", "http://host:81/v1", "http://host:81/v1/"}) {
    const Result<HttpTarget> target = read_url(url);
    ASSERT_TRUE(target.ok()) << url;
    EXPECT_EQ(target->host, "host");
    EXPECT_EQ(target->port, "81");
    EXPECT_EQ(target->prefix, "");
  }
  EXPECT_EQ(read_url("http://host")->port, "80");
  EXPECT_EQ(read_url("http://host/a/v1")->prefix, "/a");
  EXPECT_EQ(read_url("http://[::1]:8000")->host, "::1");
  EXPECT_EQ(read_url("http://[::1]:8000")->port, "8000");
}

TEST(Url, ThatIsNoneSaysWhatWouldWork) {
  for (const char* url :
       {"", "host:80", "http://", "http://:80", "http://host:", "http://host:eighty", "http://host:123456",
        "http://ho st", "http://u@host", "http://host/?x", "http://host\r\n", "ftp://host", "https://host"}) {
    const Result<HttpTarget> target = read_url(url);
    ASSERT_FALSE(target.ok()) << url;
    EXPECT_EQ(target.status().exit_code(), 2) << url;
    EXPECT_NE(target.status().message().find("give"), std::string::npos) << url;
  }
}

TEST(StreamedChunk, TellsTextUsageAndErrors) {
  EXPECT_TRUE(read_chunk(R"({"choices":[{"index":0,"text":"a"}]})").text);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"delta":{"content":"a"}}]})").text);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"delta":{"reasoning_content":"a"}}]})").text);
  EXPECT_FALSE(read_chunk(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").text);
  EXPECT_FALSE(read_chunk(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})").text);
  const StreamedChunk last =
      read_chunk(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}})");
  EXPECT_EQ(last.prompt_tokens, 7);
  EXPECT_EQ(last.output_tokens, 3);
  EXPECT_EQ(read_chunk(R"({"choices":[],"usage":null})").output_tokens, -1);
  EXPECT_EQ(read_chunk(R"({"error":{"message":"out\u001b[2J"}})").error, R"("out\x1b[2J")");
  EXPECT_FALSE(read_chunk("<html>").json);
  EXPECT_FALSE(read_chunk("[1]").json);
}

TEST(ServerComplaint, IsItsMessageOrTheBeginningOfItsBody) {
  const ServerComplaint complaint =
      read_complaint(R"({"error":{"message":"no such model","code":"model_not_found"}})");
  EXPECT_EQ(complaint.message, "no such model");
  EXPECT_EQ(complaint.code, "model_not_found");
  EXPECT_EQ(read_complaint("<html>").message, "\"<html>\"");
  EXPECT_EQ(read_complaint("{}").code, "");
}

TEST(UrlReport, IsOneLineOfJson) {
  UrlRun run{.rate = 5,
             .requests = 4,
             .completed = 3,
             .errors = {{"status 429 queue_full", 1}},
             .seconds = 2,
             .output_tokens = 30};
  const std::string json = report_json({.url = "http://a", .runs = {run}});
  EXPECT_NE(json.find(R"("output_tokens_per_s":15)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("errors":{"status 429 queue_full":1})"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("rate":5)"), std::string::npos) << json;
  EXPECT_EQ(json.find("concurrency"), std::string::npos);
  EXPECT_EQ(json.find('\n'), json.size() - 1);
}

}  // namespace
}  // namespace nibble
