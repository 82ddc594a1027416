#include "app/input_text.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string error_of(const std::string& path) {
  Console console;
  const Result<std::string> text = read_input_text(path, console);
  if (text.ok()) return "";
  EXPECT_EQ(text.status().exit_code(), 2);
  return text.status().message();
}

TEST(InputText, IsAFileOrStandardInput) {
  char bytes[] = "from\0input";
  Console console{.in = fmemopen(bytes, 10, "r")};
  EXPECT_EQ(read_input_text("-", console).value(), std::string("from\0input", 10));
  std::fclose(console.in);
  EXPECT_NE(read_input_text(NIBBLE_SOURCE_DIR "/app/input_text_test.cpp", console)
                .value()
                .find("IsAFileOrStandardInput"),
            std::string::npos);
}

TEST(InputText, WhatCannotBeReadIsRefusedAsTheUsersChoice) {
  const std::string remedy = "; give a file that can be read, or - for standard input";
  EXPECT_EQ(error_of("/no/such\nfile"),
            R"(cannot open "/no/such\nfile": No such file or directory)" + remedy);
  EXPECT_EQ(error_of("/"), R"(cannot read "/": Is a directory)" + remedy);
}

}  // namespace
}  // namespace nibble
