// Several processes that share ranks: of CPUs on one machine, started by mpirun or by hand, or one on each of
// several machines; or of GPUs of one machine. The first has the scheduler and the requests; the others run
// its steps.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/options.h"
#include "base/status.h"
#include "comm/process_links.h"
#include "comm/process_meeting.h"
#include "engine/choices.h"

namespace nibble {

// What the environment says of a variable; null: it is not set.
using Variables = std::function<const char*(const char* name)>;

// The options with what mpirun says where they say nothing. Refused where they contradict it or each other.
Result<EngineOptions> with_processes(EngineOptions options, const Variables& variables);

// Whether this process runs the steps of another one.
inline bool follows(const EngineOptions& options) { return options.process > 0; }

// What several processes cannot do is refused before any weights are looked for. Then all meet; of what each
// could take the smallest counts, and `choices` say so. Null where this process is alone.
Result<std::unique_ptr<ProcessLinks>> join_processes(const EngineOptions& options,
                                                     const std::filesystem::path& folder,
                                                     EngineChoices& choices);

}  // namespace nibble
