// Several processes that share the ranks of a CPU, as threads of a test, with connections of their own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/process_test_util.h"
#include "engine/choices.h"
#include "engine/engine.h"

namespace nibble {

// The first one's engine; the others run its steps until it ends.
class EngineOfProcesses {
 public:
  using Change = std::function<void(EngineChoices&)>;

  // `change` is of what the first alone decides.
  EngineOfProcesses(const std::filesystem::path& model, EngineOptions options, int processes,
                    const Change& change = {}) {
    options.model = model.string();
    options.processes = options.processes_here = processes;
    options.first_process = free_address().text();
    for (int process = 1; process < processes; ++process) {
      options.process = process;
      others_.emplace_back([options] {
        const Status ended = Engine::follow(options, {});
        EXPECT_TRUE(ended.ok()) << ended.message();
      });
    }
    options.process = 0;
    Result<std::unique_ptr<Engine>> engine = load_engine(options, change, {});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (engine.ok()) engine_ = std::move(engine).value();
  }
  EngineOfProcesses(const EngineOfProcesses&) = delete;
  EngineOfProcesses& operator=(const EngineOfProcesses&) = delete;
  ~EngineOfProcesses() {
    engine_.reset();
    for (std::thread& other : others_) other.join();
  }

  Engine* get() const { return engine_.get(); }  // null: it has not started

 private:
  std::vector<std::thread> others_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace nibble
