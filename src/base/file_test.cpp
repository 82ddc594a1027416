#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace nibble {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "nibble_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

TEST_F(FileTest, ReadsEveryByteUpToTheLimit) {
  const std::string text("a\0b\r\n\xff", 6);
  const auto path = write("bytes", text);
  EXPECT_EQ(read_file(path, 6).value(), text);
  EXPECT_EQ(read_file(write("empty", ""), 0).value(), "");
  const Status status = read_file(path, 5).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "\"" + path.native() + "\" has 6 bytes; at most 5 are allowed");
}

TEST_F(FileTest, NamesWhatIsMissing) {
  const Status status = read_file(folder_ / "no\nfile", 10).status();
  EXPECT_EQ(status.code(), StatusCode::not_found);
  EXPECT_EQ(status.message(),
            "cannot open \"" + folder_.native() + "/no\\nfile\": No such file or directory");
}

TEST_F(FileTest, RefusesFoldersPipesAndDevicesWithoutWaiting) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::filesystem::path& path : {folder_, pipe, std::filesystem::path("/dev/zero")}) {
    EXPECT_EQ(read_file(path, 1 << 20).status().message(), "\"" + path.native() + "\" is not a regular file");
  }
}

TEST_F(FileTest, AStreamIsReadToItsEndOrRefusedAtTheLimit) {
  const std::string text(200000, 'x');
  const auto path = write("long", text);
  const auto read = [&path](std::size_t max_bytes) {
    std::FILE* stream = std::fopen(path.c_str(), "rb");
    const auto result = read_stream(stream, "standard input", max_bytes);
    std::fclose(stream);
    return result;
  };
  EXPECT_EQ(read(text.size()).value(), text);
  EXPECT_EQ(read(text.size() - 1).status().message(),
            "standard input has more than the 199999 bytes that are allowed");
  std::FILE* endless = std::fopen("/dev/zero", "rb");
  EXPECT_EQ(read_stream(endless, "a pipe", 1 << 20).status().code(), StatusCode::invalid_argument);
  std::fclose(endless);
}

}  // namespace
}  // namespace nibble
