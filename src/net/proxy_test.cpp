#include "net/proxy.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string chosen(const ProxyEnvironment& environment, const std::string& url) {
  const Result<std::optional<Proxy>> proxy = choose_proxy(environment, *parse_url(url));
  if (!proxy.ok()) return proxy.status().message();
  if (!*proxy) return "direct";
  return (*proxy)->host + ":" + (*proxy)->port + " " + (*proxy)->authorization;
}

TEST(Proxy, TheSchemesOwnVariableWins) {
  const ProxyEnvironment environment{
      .http_proxy = "http://a:1", .https_proxy = "b:2", .all_proxy = "http://c:3/", .no_proxy = {}};
  EXPECT_EQ(chosen(environment, "http://x"), "a:1 ");
  EXPECT_EQ(chosen(environment, "https://x"), "b:2 ");
  EXPECT_EQ(chosen({.all_proxy = "http://c:3/"}, "https://x"), "c:3 ");
  EXPECT_EQ(chosen({.http_proxy = "http://a:1"}, "https://x"), "direct");
  EXPECT_EQ(chosen({.http_proxy = "proxy"}, "http://x"), "proxy:80 ");
}

TEST(Proxy, UserAndPasswordBecomeAHeader) {
  EXPECT_EQ(chosen({.https_proxy = "http://me:p%40ss@proxy:3128"}, "https://x"),
            "proxy:3128 Basic bWU6cEBzcw==");
  EXPECT_EQ(chosen({.https_proxy = "me@[::1]:3128"}, "https://x"), "::1:3128 Basic bWU=");
}

TEST(Proxy, WhatCannotBeUsedIsNamedWithoutItsPassword) {
  for (const char* address :
       {"socks5://me:secret@a:1", "https://me:secret@a:1", "http://me:secret@a:x", "http://"}) {
    const std::string said = chosen({.https_proxy = address}, "https://x");
    EXPECT_TRUE(said.starts_with("the variable https_proxy holds no proxy")) << said;
    EXPECT_EQ(said.find("secret"), said.npos);
  }
}

TEST(Proxy, NoProxyNamesHostsDomainsPortsAndNetworks) {
  const auto bypasses = [](const char* no_proxy, const char* url) {
    return bypasses_proxy(no_proxy, *parse_url(url));
  };
  EXPECT_TRUE(bypasses("*", "http://x"));
  EXPECT_TRUE(bypasses("a, huggingface.co", "https://huggingface.co"));
  EXPECT_TRUE(bypasses("huggingface.co", "https://cdn.HuggingFace.co"));
  EXPECT_TRUE(bypasses(".co", "https://huggingface.co"));
  EXPECT_TRUE(bypasses("*.CO", "https://huggingface.co"));
  EXPECT_FALSE(bypasses("ingface.co", "https://huggingface.co"));
  EXPECT_TRUE(bypasses("x:8080", "http://x:8080"));
  EXPECT_FALSE(bypasses("x:8080", "http://x"));
  EXPECT_TRUE(bypasses("127.0.0.1", "http://127.0.0.1:1"));
  EXPECT_FALSE(bypasses("0.0.1", "http://127.0.0.1:1"));
  EXPECT_TRUE(bypasses("127.0.0.0/8", "http://127.9.9.9"));
  EXPECT_FALSE(bypasses("127.0.0.0/8", "http://128.0.0.1"));
  EXPECT_TRUE(bypasses("10.1.0.0/15", "http://10.0.255.255"));
  EXPECT_FALSE(bypasses("10.0.0.0/99,10.0.0.0/,10.0.0.0/x", "http://10.0.0.0"));
  EXPECT_TRUE(bypasses("fd00::/8", "http://[fd12::1]"));
  EXPECT_TRUE(bypasses("::1", "http://[::1]:80"));
  EXPECT_TRUE(bypasses("[::1]:80", "http://[::1]:80"));
  EXPECT_FALSE(bypasses("", "http://x"));
  EXPECT_FALSE(bypasses(", ,", "http://x"));
}

}  // namespace
}  // namespace nibble
