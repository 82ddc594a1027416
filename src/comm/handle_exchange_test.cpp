#include "comm/handle_exchange.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "comm/process_test_util.h"

namespace nibble {
namespace {

// So many processes of one host, as threads.
std::vector<Result<MetProcesses>> meet_on_one_host(int processes) {
  std::vector<MeetingTerms> terms(static_cast<std::size_t>(processes));
  for (int i = 0; i < processes; ++i) {
    terms[static_cast<std::size_t>(i)].host = "here";
    terms[static_cast<std::size_t>(i)].devices = {std::to_string(2 * i), std::to_string(2 * i + 1)};
  }
  return meet_all(meetings_of(processes), terms);
}

// A file of one page that begins with the word.
Descriptor file_of(std::uint32_t word) {
  Descriptor file(memfd_create("nibble-test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file.get(), 4096), 0);
  EXPECT_EQ(pwrite(file.get(), &word, sizeof word, 0), static_cast<ssize_t>(sizeof word));
  return file;
}

std::uint32_t word_in(const Descriptor& file) {
  std::uint32_t word = 0;
  EXPECT_EQ(pread(file.get(), &word, sizeof word, 0), static_cast<ssize_t>(sizeof word));
  return word;
}

TEST(HandleExchange, EachHasTheFilesOfAllOthersInTheirOrder) {
  for (const int count : {2, 4}) {
    std::vector<Result<MetProcesses>> met = meet_on_one_host(count);
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      const Result<MetProcesses>& own = met[static_cast<std::size_t>(i)];
      ASSERT_TRUE(own.ok()) << own.status().message();
      threads.emplace_back([&, i] {
        // Twice: in the order of calls.
        for (int call = 0; call < 2; ++call) {
          const auto word = [&](int process, int file) {
            return static_cast<std::uint32_t>(100 * call + 10 * process + file);
          };
          const Descriptor first = file_of(word(i, 0)), second = file_of(word(i, 1));
          const int files[] = {first.get(), second.get()};
          const auto all = own->handles->exchange(4096, files);
          ASSERT_TRUE(all.ok()) << all.status().message();
          for (int j = 0; j < count; ++j) {
            const std::vector<Descriptor>& theirs = (*all)[static_cast<std::size_t>(j)];
            ASSERT_EQ(theirs.size(), i == j ? 0u : 2u);
            for (std::size_t file = 0; file < theirs.size(); ++file)
              EXPECT_EQ(word_in(theirs[file]), word(j, static_cast<int>(file)));
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(HandleExchange, WhoEndsOrHasOtherSizesIsNamed) {
  const Descriptor file = file_of(7);
  const int files[] = {file.get()};
  std::vector<Result<MetProcesses>> met = meet_on_one_host(2);
  ASSERT_TRUE(met[0].ok() && met[1].ok());
  std::thread other([&] { EXPECT_FALSE(met[1]->handles->exchange(8192, files).ok()); });
  const Status differs = met[0]->handles->exchange(4096, files).status();
  other.join();
  EXPECT_NE(differs.message().find("process 1 has 1 rooms of 8192 bytes"), std::string::npos)
      << differs.message();
  met[1]->handles.reset();
  const Status ended = met[0]->handles->exchange(4096, files).status();
  EXPECT_NE(ended.message().find("process 1"), std::string::npos) << ended.message();
}

TEST(HandleSocket, FilesComeWithTheirMessageAndAreClosedWithIt) {
  const std::string name = "nibble-test-" + std::to_string(getpid());
  const auto until = HandleSocket::Clock::now() + std::chrono::seconds(10);
  const HandleSocket listening = HandleSocket::listen(name).value();
  EXPECT_FALSE(HandleSocket::listen(name).ok()) << "a name is one process's";
  const HandleSocket caller = HandleSocket::connect(name, until).value();
  const HandleSocket called = listening.accept(until).value();
  const Descriptor file = file_of(9);
  const int files[] = {file.get()};
  const char word = 'x';
  ASSERT_TRUE(caller.send(std::as_bytes(std::span(&word, 1)), files).ok());
  int descriptor = -1;
  {
    const HandleSocket::Message came = called.receive(until).value();
    ASSERT_EQ(came.bytes.size(), 1u);
    ASSERT_EQ(came.files.size(), 1u);
    descriptor = came.files[0].get();
    EXPECT_EQ(word_in(came.files[0]), 9u);
  }
  struct stat state {};
  EXPECT_NE(fstat(descriptor, &state), 0) << "closed";
  const auto soon = HandleSocket::Clock::now() + std::chrono::milliseconds(20);
  EXPECT_FALSE(called.receive(soon).ok()) << "nothing comes";
}

TEST(HandleSocket, WhoCallsWhereNobodyListensGivesUp) {
  const auto soon = HandleSocket::Clock::now() + std::chrono::milliseconds(50);
  EXPECT_FALSE(HandleSocket::connect("nibble-test-nobody", soon).ok());
}

}  // namespace
}  // namespace nibble
