#include "app/other_process.h"

#include <cstdlib>

#include "app/version.h"
#include "engine/processes.h"

namespace nibble {

Result<EngineOptions> options_of_process(const EngineOptions& options) {
  NIBBLE_ASSIGN(EngineOptions own,
                with_processes(options, [](const char* name) { return std::getenv(name); }));
  own.version = NIBBLE_VERSION " (" NIBBLE_COMMIT ")";
  return own;
}

std::optional<Status> run_steps_of_another(const EngineOptions& options, const Following& following) {
  if (!follows(options)) return {};
  return Engine::follow(options, following);
}

}  // namespace nibble
