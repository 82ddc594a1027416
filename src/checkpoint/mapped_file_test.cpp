#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/test_checkpoint.h"

namespace nibble {
namespace {

constexpr std::size_t megabyte = 1 << 20;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Reads every byte, so that every page is touched.
std::uint64_t sum(std::span<const std::byte> bytes) {
  std::uint64_t total = 0;
  for (const std::byte byte : bytes) total += std::to_integer<std::uint64_t>(byte);
  return total;
}

class MappedFileTest : public testing::Test {
 protected:
  MappedFile open(const std::string& bytes, FileAccess access = FileAccess::map_or_read) {
    folder.write("file", bytes);
    return MappedFile::open(path(), access).value();
  }
  std::filesystem::path path() const { return folder.path() / "file"; }

  TestFolder folder;
};

TEST_F(MappedFileTest, HoldsTheFilesBytesMappedOrRead) {
  const MappedFile mapped = open("some bytes");
  EXPECT_TRUE(mapped.is_mapped());
  EXPECT_EQ(text_of(mapped), "some bytes");
  const MappedFile read = open("some bytes", FileAccess::read);
  EXPECT_FALSE(read.is_mapped());
  EXPECT_EQ(text_of(read), "some bytes");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read.bytes().data()) % 64, 0u);
}

TEST_F(MappedFileTest, AnEmptyFileIsEmpty) {
  for (const FileAccess access : {FileAccess::map_or_read, FileAccess::read}) {
    const MappedFile file = open("", access);
    EXPECT_TRUE(file.bytes().empty());
    EXPECT_TRUE(file.intact().ok());
  }
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(MappedFile::open(folder.path()).status().message(),
            "\"" + folder.path().native() + "\" is not a regular file");
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(path()).status().code(), StatusCode::broken_model)
      << "and does not wait for a writer";
  const Status missing = MappedFile::open(folder.path() / "none").status();
  EXPECT_EQ(missing.code(), StatusCode::not_found);
  EXPECT_EQ(missing.message(),
            "cannot open \"" + folder.path().native() + "/none\": No such file or directory");
}

// The process lives, the pages that are gone read as zeros, and intact() says so.
TEST_F(MappedFileTest, AFileThatShrinksUnderItsMappingIsAnError) {
  const MappedFile file = open(std::string(megabyte, '\1'));
  ASSERT_TRUE(file.intact().ok());
  ASSERT_EQ(sum(file.bytes()), megabyte);
  std::filesystem::resize_file(path(), 10'000);
  EXPECT_EQ(sum(file.bytes()), 10'000u);
  EXPECT_EQ(file.intact().code(), StatusCode::io_error);
  EXPECT_EQ(file.intact().message(),
            "\"" + path().native() +
                "\" changed from 1048576 to 10000 bytes after it was opened; leave a model's "
                "files alone while it is loaded, and start again");
}

// Even if the old size is back when somebody asks.
TEST_F(MappedFileTest, LostPagesAreRememberedWhenTheFileGrowsAgain) {
  const MappedFile file = open(std::string(megabyte, '\1'));
  const auto modified = std::filesystem::last_write_time(path());
  std::filesystem::resize_file(path(), 0);
  EXPECT_EQ(sum(file.bytes()), 0u);
  std::filesystem::resize_file(path(), megabyte);
  std::filesystem::last_write_time(path(), modified);
  EXPECT_EQ(file.intact().message(), "a part of \"" + path().native() +
                                         "\" could not be read: the file shrank or its disk failed; leave a "
                                         "model's files alone while it is loaded, and start again");
}

// Within its last page a shrunken file reads as zeros without any signal.
TEST_F(MappedFileTest, AFileThatShrinksWithinAPageIsAnErrorToo) {
  const MappedFile file = open(std::string(100, '\1'));
  std::filesystem::resize_file(path(), 50);
  EXPECT_EQ(sum(file.bytes()), 50u);
  EXPECT_FALSE(file.intact().ok());
}

TEST_F(MappedFileTest, AFileWrittenInPlaceIsAnError) {
  const MappedFile file = open(std::string(100, '\1'));
  std::filesystem::last_write_time(path(),
                                   std::filesystem::last_write_time(path()) + std::chrono::seconds(5));
  EXPECT_EQ(file.intact().message(), "\"" + path().native() +
                                         "\" was written to after it was opened; leave a model's "
                                         "files alone while it is loaded, and start again");
}

TEST_F(MappedFileTest, AFileThatIsReplacedOrRemovedStaysWhatItWas) {
  const MappedFile file = open(std::string(100, '\1'));
  std::filesystem::rename(path(), folder.path() / "other");
  folder.write("file", "new");
  std::filesystem::remove(folder.path() / "other");
  EXPECT_EQ(sum(file.bytes()), 100u);
  EXPECT_TRUE(file.intact().ok());
}

TEST_F(MappedFileTest, ACopyDoesNotCareWhatHappensToTheFile) {
  const MappedFile file = open(std::string(megabyte, '\1'), FileAccess::read);
  std::filesystem::resize_file(path(), 0);
  EXPECT_EQ(sum(file.bytes()), megabyte);
  EXPECT_TRUE(file.intact().ok());
}

TEST_F(MappedFileTest, ManyThreadsMayMeetLostPagesAtOnce) {
  const MappedFile file = open(std::string(megabyte, '\1'));
  std::filesystem::resize_file(path(), 0);
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::vector<std::uint64_t> sums(4, 1);
  for (std::uint64_t& result : sums) threads.emplace_back([&] { result = sum(file.bytes()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<std::uint64_t>(4, 0));
  EXPECT_FALSE(file.intact().ok());
}

TEST_F(MappedFileTest, OneFilesDamageIsNotAnothers) {
  const MappedFile shrunk = open(std::string(megabyte, '\1'));
  folder.write("sound", std::string(megabyte, '\1'));
  const MappedFile sound = *MappedFile::open(folder.path() / "sound");
  std::filesystem::resize_file(path(), 0);
  (void)sum(shrunk.bytes());
  EXPECT_FALSE(shrunk.intact().ok());
  EXPECT_EQ(sum(sound.bytes()), megabyte);
  EXPECT_TRUE(sound.intact().ok());
}

TEST_F(MappedFileTest, MovesWithItsBytes) {
  std::optional<MappedFile> first = open("some bytes");
  const std::byte* data = first->bytes().data();
  const MappedFile second = std::move(*first);
  first.reset();
  EXPECT_EQ(second.bytes().data(), data);
  EXPECT_EQ(text_of(second), "some bytes");
}

TEST_F(MappedFileTest, MoreMappingsThanTheTableHoldsAreReadInstead) {
  folder.write("file", "some bytes");
  struct rlimit limit {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<MappedFile> files;
  while (files.size() < 1100) {
    Result<MappedFile> file = MappedFile::open(path());
    if (!file.ok()) GTEST_SKIP() << "the limit of open files is too low here: " << file.status().message();
    files.push_back(std::move(file).value());
  }
  EXPECT_TRUE(files.front().is_mapped());
  EXPECT_FALSE(files.back().is_mapped());
  EXPECT_EQ(text_of(files.back()), "some bytes");
  files.clear();
  EXPECT_TRUE(MappedFile::open(path())->is_mapped()) << "places in the table are given back";
}

// A SIGBUS that is none of ours does what it did before.
TEST_F(MappedFileTest, ForeignBusErrorsStillEndTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        const MappedFile ours = open("some bytes");
        raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_DFL);
        const MappedFile ours = open("some bytes");
        folder.write("foreign", std::string(megabyte, '\1'));
        const int fd = ::open((folder.path() / "foreign").c_str(), O_RDONLY);
        void* foreign = mmap(nullptr, megabyte, PROT_READ, MAP_SHARED, fd, 0);
        std::filesystem::resize_file(folder.path() / "foreign", 0);
        std::exit(static_cast<int>(sum({static_cast<const std::byte*>(foreign), megabyte})));
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(MappedFileTest, ForeignBusErrorsReachTheHandlerThatWasThereBefore) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, [](int) { std::_Exit(42); });
        const MappedFile ours = open("some bytes");
        raise(SIGBUS);
      },
      testing::ExitedWithCode(42), "");
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, SIG_IGN);
        const MappedFile ours = open("some bytes");
        raise(SIGBUS);
        std::_Exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(MappedFileTest, MapsAtOnceWhatThePageCacheHolds) {
  const std::size_t size = 5 * megabyte + 123;
  const MappedFile file = open(std::string(size, 'x'));
  const std::size_t first = file.map_cached(0, 4 * megabyte);
  if (first == 0) GTEST_SKIP() << "this kernel or file system does not tell or map what is cached";
  EXPECT_EQ(first, 4 * megabyte);
  EXPECT_EQ(file.map_cached(4 * megabyte, 4 * megabyte), megabyte + 123);
  EXPECT_EQ(file.map_cached(8 * megabyte, megabyte), 0u) << "past the end";
  EXPECT_EQ(sum(file.bytes()), size * 'x');
  EXPECT_EQ(open("private", FileAccess::read).map_cached(0, megabyte), 0u) << "there is no mapping";
}

TEST_F(MappedFileTest, ReadsAnyPartWithoutItsMapping) {
  std::string text(3 * megabyte + 5, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 >> 3);
  for (const FileAccess access : {FileAccess::map_or_read, FileAccess::read}) {
    const MappedFile file = open(text, access);
    for (const auto& [offset, size] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, text.size()}, {0, 0}, {text.size(), 0}, {4097, megabyte}, {text.size() - 1, 1}}) {
      std::string part(size, 'x');
      const Status read = file.read(offset, std::as_writable_bytes(std::span(part)));
      ASSERT_TRUE(read.ok()) << read.message();
      EXPECT_TRUE(part == text.substr(offset, size)) << offset << " " << size;
    }
  }
}

TEST_F(MappedFileTest, ReadingWhatAFileHasNoLongerIsAnError) {
  const MappedFile file = open(std::string(3 * megabyte, 'x'));
  std::filesystem::resize_file(path(), megabyte + 7);
  std::string part(megabyte, 'y');
  EXPECT_TRUE(file.read(0, std::as_writable_bytes(std::span(part))).ok());
  const Status read = file.read(megabyte, std::as_writable_bytes(std::span(part)));
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.message().find("shrank from 3145728 to at most 1048583 bytes"), std::string::npos)
      << read.message();
}

TEST_F(MappedFileTest, MappingAFileThatShrankIsNoCrash) {
  const MappedFile file = open(std::string(5 * megabyte, 'x'));
  std::filesystem::resize_file(path(), megabyte);
  (void)file.map_cached(0, 5 * megabyte);
  EXPECT_FALSE(file.intact().ok());
}

}  // namespace
}  // namespace nibble
