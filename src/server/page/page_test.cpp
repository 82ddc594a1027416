#include "server/page/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/file.h"

namespace nibble::page {
namespace {

std::string field(const http::Response& response, std::string_view name) {
  for (const auto& [each, value] : response.fields)
    if (each == name) return value;
  return "";
}

std::string source(const std::string& name) {
  const Result<std::string> text =
      read_file(std::string(NIBBLE_SOURCE_DIR) + "/src/server/page/" + name, 1 << 20);
  return text.ok() ? *text : "unreadable";
}

TEST(Page, IsTheFilesOfItsFolder) {
  const auto index = file_answer("/", "");
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(index->status, 200);
  EXPECT_EQ(index->body, source("index.html"));
  EXPECT_EQ(index->content_type, "text/html; charset=utf-8");
  for (const char* name : {"app.js", "style.css", "icon.svg"}) {
    const auto file = file_answer("/" + std::string(name), "");
    ASSERT_TRUE(file.has_value()) << name;
    EXPECT_EQ(file->body, source(name)) << name;
  }
  EXPECT_EQ(file_answer("/app.js", "")->content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(file_answer("/style.css", "")->content_type, "text/css; charset=utf-8");
}

// A proxy may serve the page under a prefix, so no file of it names a path from the root.
TEST(Page, NamesItsFilesRelatively) {
  const std::string index = std::string(file_answer("/", "")->body);
  EXPECT_EQ(index.find("=\"/"), index.npos);
  for (const char* name : {"api.js", "app.js", "chat.js", "list.js", "panel.js", "style.css"}) {
    const std::string text = source(name);
    for (const char* absolute : {"from \"/", "import \"/", "ask(\"/", "getJson(\"/", "fetch(\"/", "url(/"})
      EXPECT_EQ(text.find(absolute), text.npos) << name << ": " << absolute;
  }
}

TEST(Page, HasNoOtherPaths) {
  for (const char* path :
       {"", "app.js", "//", "/page.cpp", "/../app.js", "/app.js/", "/APP.JS", "/v1/models"})
    EXPECT_FALSE(is_file(path) || file_answer(path, "").has_value()) << path;
}

TEST(Page, IsNotSentAgainToWhoHasIt) {
  const std::string tag = field(*file_answer("/", ""), "ETag");
  EXPECT_GE(tag.size(), 18u);
  for (const std::string& known : {tag, "\"other\", " + tag, "W/" + tag}) {
    const auto answer = file_answer("/", known);
    EXPECT_EQ(answer->status, 304);
    EXPECT_EQ(answer->body, "");
    EXPECT_EQ(field(*answer, "ETag"), tag);
  }
  EXPECT_EQ(file_answer("/", "\"other\"")->status, 200);
  EXPECT_NE(field(*file_answer("/app.js", ""), "ETag"), tag);
}

TEST(Page, LetsNothingInlineNorForeignRun) {
  const auto index = file_answer("/", "");
  const std::string policy = field(*index, "Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_NE(policy.find("script-src 'self';"), std::string::npos);
  EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(field(*index, "X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(field(*index, "Referrer-Policy"), "no-referrer");
  EXPECT_EQ(index->body.find("style="), std::string::npos);
  EXPECT_EQ(index->body.find("//"), index->body.npos);  // no address of another host
}

}  // namespace
}  // namespace nibble::page
