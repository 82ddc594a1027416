#include "server/http/listening_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace nibble::http {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    char name[] = "/tmp/nibble-socket-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string host(const std::string& name = "s") const { return "unix:" + path + "/" + name; }
  std::string path;
};

mode_t mode_of(const std::string& path) {
  struct stat facts {};
  return stat(path.c_str(), &facts) == 0 ? facts.st_mode : 0;
}

TEST(UnixSocket, IsAFileForItsOwnerOnlyWhateverTheUmaskUntilItIsRemoved) {
  const Folder folder;
  const mode_t before = umask(0);
  const Result<ListeningSocket> socket = ListeningSocket::open(folder.host(), 0);
  umask(before);
  ASSERT_TRUE(socket.ok()) << socket.status().message();
  EXPECT_EQ(mode_of(folder.path + "/s"), static_cast<mode_t>(S_IFSOCK | 0600));
  EXPECT_EQ(socket->family(), AF_UNIX);
  EXPECT_EQ(socket->port(), 0);
  socket->file()->remove();
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(UnixSocket, HasThePermissionsThatAreAskedFor) {
  const Folder folder;
  const Result<ListeningSocket> socket = ListeningSocket::open(folder.host(), 0, 0660);
  ASSERT_TRUE(socket.ok());
  EXPECT_EQ(mode_of(folder.path + "/s") & 0777u, 0660u);
}

TEST(UnixSocket, ReplacesOneThatNobodyListensOnAndNoOther) {
  const Folder folder;
  { ASSERT_TRUE(ListeningSocket::open(folder.host(), 0).ok()); }  // closed, and its file is left
  ASSERT_TRUE(fs::is_socket(folder.path + "/s"));
  const Result<ListeningSocket> second = ListeningSocket::open(folder.host(), 0);
  ASSERT_TRUE(second.ok()) << second.status().message();
  const Result<ListeningSocket> third = ListeningSocket::open(folder.host(), 0);
  ASSERT_FALSE(third.ok());
  EXPECT_NE(third.status().message().find("another server listens"), std::string::npos);
}

TEST(UnixSocket, RemovesOnlyItsOwnFile) {
  const Folder folder;
  const Result<ListeningSocket> socket = ListeningSocket::open(folder.host(), 0);
  ASSERT_TRUE(socket.ok());
  fs::remove(folder.path + "/s");
  const Result<ListeningSocket> other = ListeningSocket::open(folder.host(), 0);
  ASSERT_TRUE(other.ok());
  socket->file()->remove();
  EXPECT_TRUE(fs::exists(folder.path + "/s"));
}

TEST(UnixSocket, RefusesWhatItCannotBe) {
  const Folder folder;
  std::ofstream(folder.path + "/file") << "precious";
  for (const std::string& host :
       {folder.host("file"), folder.host("none/s"), folder.host(std::string(120, 'a')), std::string("unix:"),
        std::string("unix:relative")}) {
    const Result<ListeningSocket> socket = ListeningSocket::open(host, 0);
    ASSERT_FALSE(socket.ok()) << host;
    EXPECT_NE(socket.status().message().find("unix:"), std::string::npos) << socket.status().message();
  }
  EXPECT_EQ(fs::file_size(folder.path + "/file"), 8u);
}

}  // namespace
}  // namespace nibble::http
