#include "base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/json.h"

namespace nibble {
namespace {

using namespace std::chrono_literals;

// 2026-11-21T02:34:06.123Z
const Clock::WallTime kStart(1795228446123ms);

// What is written while `use` has a log.
template <class Use>
std::string written(LogOptions options, Use use) {
  std::string text;  // touched by the log's thread alone until the log is gone
  options.write = [&text](std::string_view line) { text += line; };
  const ManualClock clock(kStart);
  {
    Log log(options, clock);
    use(log);
  }
  return text;
}

TEST(Log, WritesTimeLevelMessageAndValues) {
  const auto use = [](Log& log) {
    log.info("request finished", {{"id", 7},
                                  {"model", "demo"},
                                  {"name", std::string("a \"b\"")},
                                  {"seconds", 0.5},
                                  {"big", std::numeric_limits<std::uint64_t>::max()},
                                  {"streamed", true}});
    log.error("gone");
  };
  EXPECT_EQ(
      written({}, use),
      "2026-11-21T02:34:06.123Z info request finished id=7 model=\"demo\" name=\"a \\\"b\\\"\" seconds=0.5 "
      "big=18446744073709551615 streamed=true\n"
      "2026-11-21T02:34:06.123Z error gone\n");
  EXPECT_EQ(
      written({.format = LogFormat::json}, use),
      R"({"time":"2026-11-21T02:34:06.123Z","level":"info","message":"request finished","id":7,"model":"demo",)"
      R"("name":"a \"b\"","seconds":0.5,"big":18446744073709551615,"streamed":true})"
      "\n"
      R"({"time":"2026-11-21T02:34:06.123Z","level":"error","message":"gone"})"
      "\n");
}

TEST(Log, LeavesOutAFieldThatHasNoText) {
  const auto use = [](Log& log) {
    const std::optional<std::string_view> none, some = "";
    log.info("request", {{"client_id", none}, {"path", some}, {"status", 200}});
  };
  EXPECT_EQ(written({}, use), "2026-11-21T02:34:06.123Z info request path=\"\" status=200\n");
  EXPECT_EQ(written({.format = LogFormat::json}, use),
            R"({"time":"2026-11-21T02:34:06.123Z","level":"info","message":"request","path":"","status":200})"
            "\n");
}

TEST(Log, WritesNothingBelowItsLevel) {
  const auto use = [](Log& log) {
    EXPECT_FALSE(log.enabled(LogLevel::info));
    log.debug("no");
    log.info("no");
    log.warning("yes");
  };
  EXPECT_EQ(written({.level = LogLevel::warning}, use), "2026-11-21T02:34:06.123Z warning yes\n");
  EXPECT_EQ(written({.level = LogLevel::off}, [](Log& log) { log.error("no"); }), "");
}

// What a client might send to deceive whoever reads the log: a screen wipe, a title change, a forged line, a
// C1 control and a right-to-left override in UTF-8, bytes that are no UTF-8, NUL, DEL.
constexpr std::string_view kHostile[] = {
    "\x1b[2J\x1b[H",
    "\x1b]0;owned\x07",
    "x\n2026-11-21T02:34:06.123Z error the disk is on fire",
    "x\r2026 overwritten",
    "\xc2\x9b"
    "31mred",
    "\xe2\x80\xaegnp.exe",
    "\xff\xfe\xc3",
    std::string_view("a\0b", 3),
    "\x7f\b\b\b",
    "\" level=\"error",
    "\xf0\x9f\x98\x80",
};

TEST(Log, AStrangersBytesNeverReachALineUnescaped) {
  for (const LogFormat format : {LogFormat::plain, LogFormat::json}) {
    for (const std::string_view hostile : kHostile) {
      const std::string text = written({.format = format}, [&](Log& log) {
        log.info("as a value", {{"text", hostile}});
        log.info(hostile);
      });
      EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
      for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c <= 0x7e)) << text;
    }
  }
  EXPECT_EQ(written({},
                    [](Log& log) {
                      log.info("m", {{"text", kHostile[9]}});
                    }),
            "2026-11-21T02:34:06.123Z info m text=\"\\\" level=\\\"error\"\n");
}

TEST(Log, JsonLinesReadBackAsWhatWasLogged) {
  for (const std::string_view text :
       {"\x1b[2J\n\x7f", "\xe7\x8c\xab \xf0\x9f\x98\x80 \xc2\x9b", "\xf4\x8f\xbf\xbf"}) {
    std::string line = written({.format = LogFormat::json}, [&](Log& log) { log.info(text, {{"v", text}}); });
    const Result<JsonDocument> document = JsonDocument::parse(std::move(line));
    ASSERT_TRUE(document.ok()) << document.status().message();
    EXPECT_EQ(document->root().find("message")->as_string(), text);
    EXPECT_EQ(document->root().find("v")->as_string(), text);
  }
}

TEST(Log, CutsAValueThatIsTooLongToRead) {
  const std::string megabyte(1 << 20, 'x');
  for (const LogFormat format : {LogFormat::plain, LogFormat::json}) {
    EXPECT_LT(written({.format = format}, [&](Log& log) { log.info("m", {{"v", megabyte}}); }).size(), 1200u);
  }
}

TEST(Log, AStuckWriterNeverHoldsUpWhoeverLogs) {
  std::mutex mutex;
  std::condition_variable changed;
  bool stuck = false, released = false;
  std::vector<std::string> lines;
  const LogWriter write = [&](std::string_view line) {
    std::unique_lock lock(mutex);
    stuck = true;
    changed.notify_all();
    changed.wait(lock, [&] { return released; });
    lines.emplace_back(line);
  };
  const ManualClock clock(kStart);
  {
    Log log({.queue_lines = 4, .write = write}, clock);
    log.info("first");
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stuck; });
    lock.unlock();
    for (int i = 0; i < 10; ++i) log.info("later", {{"i", i}});  // would hang here
    EXPECT_EQ(log.dropped(), 6u);
    lock.lock();
    released = true;
    changed.notify_all();
  }
  // The newest four survive, and the first of them is preceded by the count of the lost.
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_NE(lines[0].find("first"), std::string::npos);
  EXPECT_NE(lines[1].find("warning lines were dropped"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("lines=6\n"), std::string::npos) << lines[1];
  for (int i = 0; i < 4; ++i)
    EXPECT_NE(lines[2 + i].find("later i=" + std::to_string(6 + i)), std::string::npos);
}

TEST(Log, LinesOfManyThreadsStayWhole) {
  const std::string text = written({.queue_lines = 10000}, [](Log& log) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 500; ++i) log.info("line", {{"t", t}, {"i", i}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(log.dropped(), 0u);
  });
  EXPECT_EQ(std::ranges::count(text, '\n'), 2000);
  for (int t = 0; t < 4; ++t) {
    std::size_t at = 0;
    for (int i = 0; i < 500; ++i) {
      at = text.find("Z info line t=" + std::to_string(t) + " i=" + std::to_string(i) + "\n", at);
      ASSERT_NE(at, std::string::npos) << "lines of one thread keep their order";
    }
  }
}

}  // namespace
}  // namespace nibble
