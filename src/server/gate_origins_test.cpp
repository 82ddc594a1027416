#include "server/gate_origins.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string field(const http::Response& response, std::string_view name) {
  for (const auto& [known, value] : response.fields) {
    if (known == name) return value;
  }
  return "";
}

http::RequestHead preflight(std::string origin, std::string headers) {
  http::RequestHead head{
      .method = "OPTIONS",
      .path = "/v1/chat/completions",
      .fields = {{"origin", std::move(origin)}, {"access-control-request-method", "POST"}}};
  if (!headers.empty()) head.fields.push_back({"access-control-request-headers", std::move(headers)});
  return head;
}

TEST(GateOrigins, APreflightIsAllowedTheHeadersItAsksFor) {
  const AllowedOrigins origins({"https://a.example"});
  const auto allowed = [&](std::string headers) {
    return field(*origins.preflight(preflight("https://a.example", std::move(headers))),
                 "Access-Control-Allow-Headers");
  };
  EXPECT_EQ(allowed("authorization,content-type,x-stainless-arch , x-stainless-lang"),
            "authorization, content-type, x-stainless-arch, x-stainless-lang");
  const std::string usual = allowed("");
  EXPECT_NE(usual.find("authorization"), usual.npos);
  for (const char* bad : {"a b", "a,,b", "a\tb", "a,\x01", "(", "a:b"}) EXPECT_EQ(allowed(bad), usual) << bad;
  EXPECT_EQ(allowed(std::string(5000, 'a')), usual);
}

TEST(GateOrigins, OtherOriginsGetNothing) {
  const AllowedOrigins origins({"https://a.example"});
  for (const char* other : {"https://b.example", "https://a.example.evil", "http://a.example", "null", ""}) {
    EXPECT_FALSE(origins.preflight(preflight(other, ""))) << other;
    http::Response response;
    origins.mark(preflight(other, ""), response);
    EXPECT_EQ(field(response, "Access-Control-Allow-Origin"), "") << other;
    EXPECT_EQ(field(response, "Vary"), "Origin");
  }
  http::RequestHead twice = preflight("https://a.example", "");
  twice.fields.push_back({"origin", "https://a.example"});
  EXPECT_FALSE(origins.preflight(twice));
}

TEST(GateOrigins, AnAnswerExposesItsIds) {
  http::Response response;
  AllowedOrigins({"*"}).mark({.fields = {{"origin", "https://a.example"}}}, response);
  EXPECT_EQ(field(response, "Access-Control-Allow-Origin"), "*");
  EXPECT_NE(field(response, "Access-Control-Expose-Headers").find("X-Request-Id"), std::string::npos);
  EXPECT_NE(field(response, "Access-Control-Expose-Headers").find("Retry-After"), std::string::npos);
}

TEST(GateOrigins, WithoutAnyAllowedNothingIsAdded) {
  http::Response response;
  AllowedOrigins({}).mark({.fields = {{"origin", "https://a.example"}}}, response);
  EXPECT_TRUE(response.fields.empty());
}

}  // namespace
}  // namespace nibble
