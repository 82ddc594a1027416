#include "app/tool_turn.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace nibble {
namespace {

class ToolsFile {
 public:
  explicit ToolsFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "nibble_tools_XXXXXX").string();
    ::close(mkstemp(pattern.data()));
    path_ = pattern;
    std::ofstream(path_) << text;
  }
  ~ToolsFile() { std::filesystem::remove(path_); }

  std::string read() const {
    Console console{.in = stdin, .out = stdout, .err = stderr};
    const Result<JsonDocument> tools = read_tools(path_.string(), console);
    return tools.ok() ? "read " + std::to_string(tools->root().size()) : tools.status().message();
  }

 private:
  std::filesystem::path path_;
};

TEST(ToolTurn, ResultsAreThoseOfTheCallsInTheirOrder) {
  ToolTurn turn;
  std::vector<ToolCall> calls = {{.id = "", .name = "weather", .arguments = "{}"},
                                 {.id = "functions.clock:1", .name = "clock", .arguments = "{}"}};
  turn.begin(calls);
  EXPECT_FALSE(calls[0].id.empty());
  EXPECT_EQ(calls[1].id, "functions.clock:1");  // of the model's own
  ASSERT_TRUE(turn.waits());
  EXPECT_EQ(turn.prompt(), "weather returns> ");
  const Message first = turn.take("warm");
  EXPECT_EQ(first.role, Role::tool);
  EXPECT_EQ(first.content, "warm");
  EXPECT_EQ(first.name, "weather");
  EXPECT_EQ(first.tool_call_id, calls[0].id);
  EXPECT_EQ(turn.prompt(), "clock returns> ");
  EXPECT_EQ(turn.take("late").tool_call_id, "functions.clock:1");
  EXPECT_FALSE(turn.waits());
  std::vector<ToolCall> more = {{.id = "", .name = "weather", .arguments = "{}"}};
  turn.begin(more);
  EXPECT_NE(more[0].id, calls[0].id);
  turn.clear();
  EXPECT_FALSE(turn.waits());
}

TEST(ToolTurn, AFileOfToolsIsReadOrItsFaultIsNamed) {
  EXPECT_EQ(
      ToolsFile(
          R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])")
          .read(),
      "read 2");
  EXPECT_NE(ToolsFile(R"([{"type":"function","function":{}}])").read().find("tools[0].function.name"),
            std::string::npos);
  EXPECT_NE(ToolsFile(R"([{"type":"browser"}])").read().find("tools[0].type"), std::string::npos);
  EXPECT_NE(ToolsFile("[").read().find("nibble_tools_"), std::string::npos);
  EXPECT_NE(ToolsFile("[]").read().find("has no tools"), std::string::npos);
  EXPECT_NE(ToolsFile(R"({"name":"f"})").read().find("array of functions"), std::string::npos);
}

}  // namespace
}  // namespace nibble
