#include "app/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace nibble {
namespace {

// A bound datagram socket, as a service manager has it.
class Manager {
 public:
  explicit Manager(const std::string& name) : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0) << name;
  }
  ~Manager() { close(fd_); }
  std::string received() {
    char bytes[256];
    const ssize_t size = recv(fd_, bytes, sizeof bytes, 0);
    return size < 0 ? "nothing" : std::string(bytes, static_cast<std::size_t>(size));
  }

 private:
  int fd_;
};

TEST(ServiceManager, GetsTheStateAtAPathAndAtAnAbstractName) {
  const std::string path = testing::TempDir() + "nibble_notify_" + std::to_string(getpid());
  for (const std::string& name : {path, "@nibble_notify_" + std::to_string(getpid())}) {
    Manager manager(name);
    EXPECT_TRUE(notify_service_manager(name, "READY=1\nSTATUS=serving").ok());
    EXPECT_EQ(manager.received(), "READY=1\nSTATUS=serving");
    EXPECT_EQ(manager.received(), "nothing");
  }
  std::remove(path.c_str());
}

TEST(ServiceManager, NoneIsNoFailureAndAWrongAddressSaysSo) {
  EXPECT_TRUE(notify_service_manager("", "READY=1").ok());
  for (const std::string& name :
       {std::string("relative"), std::string(200, '/'), std::string("/no/such/socket")}) {
    const Status status = notify_service_manager(name, "READY=1");
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_NE(status.message().find("NOTIFY_SOCKET"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace nibble
