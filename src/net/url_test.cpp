#include "net/url.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Url, IsReadIntoItsParts) {
  const Url url = *parse_url("HTTPS://Hub.Example:8443/api/x?a=b#c");
  EXPECT_EQ(url.scheme, "https");
  EXPECT_EQ(url.host, "hub.example");
  EXPECT_EQ(url.port, "8443");
  EXPECT_EQ(url.path, "/api/x?a=b");
  EXPECT_EQ(url.text(), "https://hub.example:8443/api/x?a=b");
  EXPECT_EQ(parse_url("http://[::1]:80")->text(), "http://[::1]/");
  EXPECT_EQ(parse_url("http://a?q")->path, "/?q");
}

TEST(Url, RefusesWhatIsNone) {
  for (const char* text :
       {"", "a", "ftp://a", "http:/a", "http://", "http://:80", "http://a:", "http://a:0", "http://a:65536",
        "http://a:1x", "http://user:password@a", "http://a b", "http://a/b c", "http://a/\r\nHost: b",
        "http://[::1", "http://[::1]x", "http://[a/b]", "http://a/\xc3\xa4", "file:///etc/passwd"}) {
    EXPECT_FALSE(parse_url(text).ok()) << text;
  }
  EXPECT_FALSE(parse_url("http://a/" + std::string(20000, 'b')).ok());
}

TEST(Url, ALocationIsAnAddressOrAPath) {
  const Url base = *parse_url("https://a:1/x/y?q=/z");
  EXPECT_EQ(resolve_location(base, "http://b/c")->text(), "http://b/c");
  EXPECT_EQ(resolve_location(base, "//b/c")->text(), "https://b/c");
  EXPECT_EQ(resolve_location(base, "/c?d#e")->text(), "https://a:1/c?d");
  EXPECT_EQ(resolve_location(base, "c")->text(), "https://a:1/x/c");
  EXPECT_EQ(resolve_location(base, "/c?to=http://b")->text(), "https://a:1/c?to=http://b");
  EXPECT_FALSE(resolve_location(base, "javascript://x").ok());
  EXPECT_FALSE(resolve_location(base, "/a b").ok());
  EXPECT_FALSE(resolve_location(base, "//").ok());
}

TEST(Url, PortAndSchemeBelongToTheOrigin) {
  const Url a = *parse_url("https://a/x");
  EXPECT_TRUE(a.same_origin(*parse_url("https://A:443/y")));
  EXPECT_FALSE(a.same_origin(*parse_url("http://a:443/x")));
  EXPECT_FALSE(a.same_origin(*parse_url("https://a:444/x")));
  EXPECT_FALSE(a.same_origin(*parse_url("https://b/x")));
}

TEST(Url, PercentCodingGoesThereAndBack) {
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  EXPECT_EQ(percent_decode(percent_encode(every)), every);
  EXPECT_EQ(percent_encode("refs/pr/1 ~"), "refs%2Fpr%2F1%20~");
  EXPECT_EQ(percent_decode("%4"), "%4");
  EXPECT_EQ(percent_decode("%zz%41%"), "%zzA%");
}

}  // namespace
}  // namespace nibble
