#include "server/gate_hosts.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(GateHosts, TellsLocalNamesFromThoseThatAnybodyMayRegister) {
  for (const char* name : {"localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]", "[::1]:80",
                           "[2001:db8::1]", "a.localhost", "server"})
    EXPECT_TRUE(is_local_name(name)) << name;
  for (const char* name :
       {"evil.com", "localhost.evil.com", "evil.com.", "1.2.3.4.evil", "1.2.3", "1.2.3.4.5"})
    EXPECT_FALSE(is_local_name(name)) << name;
}

TEST(GateHosts, NamesAreAddedOneByOneOrByTheirEnd) {
  const AllowedHosts hosts({"Models.Example", "*.svc.cluster.local"});
  for (const char* name :
       {"models.example", "MODELS.example:8000", "models.example.", "nibble.default.svc.cluster.local:80"})
    EXPECT_TRUE(hosts.allows(name)) << name;
  for (const char* name :
       {"a.models.example", "svc.cluster.local", ".svc.cluster.local", "evilsvc.cluster.local", "evil.com"})
    EXPECT_FALSE(hosts.allows(name)) << name;
}

TEST(GateHosts, AStarAllowsAny) { EXPECT_TRUE(AllowedHosts({"*"}).allows("evil.com")); }

}  // namespace
}  // namespace nibble
