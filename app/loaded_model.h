// An engine and its tokenizer, loaded side by side: each takes a good part of the time to the first token.
#pragma once

#include <functional>
#include <memory>

#include "base/options.h"
#include "base/status.h"
#include "engine/engine.h"
#include "hub/file_lock.h"
#include "text/tokenizer.h"

namespace nibble {

struct LoadedModel {
  std::unique_ptr<Engine> engine;
  Tokenizer tokenizer;
  FileLock in_use;  // of the model's folder: nibble rm leaves it alone while this lives
};

// progress(done, total) as of Engine::load.
Result<LoadedModel> load_model(const EngineOptions& options,
                               const std::function<void(double done, double total)>& progress = {});

}  // namespace nibble
