#include "server/api/event_log.h"

#include <gtest/gtest.h>

#include <functional>

namespace nibble::api {
namespace {

class Listener final : public http::Exchange {
 public:
  const http::HttpRequest& request() const override { return request_; }
  void answer(http::Response) override {}
  void begin_stream(http::Response) override {}
  void stream(std::string_view data) override { heard += data; }
  void end_stream() override { ended = true; }
  void break_stream() override {}
  void on_gone(std::function<void()> gone) override { go = std::move(gone); }

  std::string heard;
  bool ended = false;
  std::function<void()> go;

 private:
  http::HttpRequest request_;
};

TEST(EventLog, WhoeverComesHearsTheRestFromWhereItAsks) {
  RequestMemory memory(1 << 20);
  const auto log = std::make_shared<EventLog>(*memory.admit(0));
  const auto first = std::make_shared<Listener>(), late = std::make_shared<Listener>(),
             last = std::make_shared<Listener>();
  log->tell(first, 0);
  log->add("a\n\nb\n\n");
  log->tell(late, 1);
  log->add("c\n\n");
  EXPECT_EQ(memory.held(), 9u);
  log->end();
  log->tell(last, 3);
  EXPECT_EQ(first->heard, "a\n\nb\n\nc\n\n");
  EXPECT_EQ(late->heard, "b\n\nc\n\n");
  EXPECT_EQ(last->heard, "") << "it has heard all of them";
  EXPECT_TRUE(first->ended && late->ended && last->ended);
  EXPECT_EQ(memory.held(), 0u) << "who keeps it counts it";
}

TEST(EventLog, AListenerThatGoesHearsNoMoreAndOthersDo) {
  RequestMemory memory(1 << 20);
  const auto log = std::make_shared<EventLog>(*memory.admit(0));
  const auto goes = std::make_shared<Listener>(), stays = std::make_shared<Listener>();
  log->tell(goes, 0);
  log->tell(stays, 0);
  log->add("a\n\n");
  goes->go();
  log->add("b\n\n");
  log->end();
  EXPECT_EQ(goes->heard, "a\n\n");
  EXPECT_FALSE(goes->ended);
  EXPECT_EQ(stays->heard, "a\n\nb\n\n");
}

}  // namespace
}  // namespace nibble::api
