// Pulling a model for the commands: the environment's variables, the progress on the terminal, and the
// question whether to pull.
#pragma once

#include <string>

#include "app/cli.h"
#include "base/options.h"
#include "base/status.h"
#include "hub/pull.h"

namespace nibble {

struct PullRequest {
  HubName name;
  int connections = 8;
  bool verify = false;
  bool any_model = false;  // also one that nibble does not run
};

// Ctrl-C ends it, and the same command goes on from there.
Result<PullReport> pull_model(const PullRequest& request, Console& console);

// For a command that is about to load MODEL: where it is a name of the hub that the cache has not, and
// somebody sits at a terminal, asks whether to pull it, and does. Everything else is left to the load, which
// says what is wrong.
Status offer_pull(const std::string& model, Console& console);

}  // namespace nibble
