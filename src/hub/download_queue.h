// Which bytes a connection fetches next: the files' blocks that nobody has, in runs. No sockets and no disk,
// so every order of events can be tested.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"

namespace nibble {

struct BlockRun {
  std::size_t file = 0;
  std::int64_t first_block = 0;
  std::int64_t blocks = 0;
  std::int64_t skip = 0;  // bytes of the first block that are there already
};

// Any thread may call it. A block belongs to one run at a time, so it is written by one thread at a time.
class DownloadQueue {
 public:
  // Before the first take(): how many blocks one run has at most.
  void set_run_blocks(std::int64_t blocks) { run_blocks_ = blocks; }

  // Of each file, 1 for each block that is there already. Returns the file's index.
  std::size_t add(std::vector<char> done);

  // The next run of blocks that are neither there nor being fetched; nothing: all are.
  std::optional<BlockRun> take();
  // One block of a taken run is there. True once for each file: this was its last.
  bool finish(std::size_t file, std::int64_t block);
  // The end of every run: those of its blocks that did not come are free again. Of the block where it
  // stopped, `bytes` came; whoever takes it next goes on behind them.
  void give_back(const BlockRun& run, std::int64_t block = 0, std::int64_t bytes = 0);
  // The server gives this file from its first byte alone. From now on take() gives it whole, to one at a
  // time, and not before every other run of it has ended.
  void needs_whole(std::size_t file);
  // All blocks of the file are missing again.
  void reset(std::size_t file);

  bool is_done(std::size_t file, std::int64_t block) const;
  std::int64_t done_blocks() const;
  bool all_done() const;

 private:
  enum class Block : std::uint8_t { missing, taken, done };
  struct File {
    std::vector<Block> blocks;
    std::int64_t missing = 0;
    std::int64_t done = 0;
    std::map<std::int64_t, std::int64_t> begun;  // bytes that are there of a missing block
    bool whole = false;
    int runs = 0;  // that have not ended
  };

  mutable std::mutex mutex_;
  std::vector<File> files_;
  std::int64_t run_blocks_ = 32;
};

}  // namespace nibble
