#include "hub/download_queue.h"

#include <algorithm>

namespace nibble {

std::size_t DownloadQueue::add(std::vector<char> done) {
  const std::lock_guard lock(mutex_);
  File file;
  for (const char each : done) {
    file.blocks.push_back(each != 0 ? Block::done : Block::missing);
    (each != 0 ? file.done : file.missing) += 1;
  }
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

std::optional<BlockRun> DownloadQueue::take() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    File& file = files_[i];
    if (file.missing == 0 || (file.whole && file.runs > 0)) continue;
    ++file.runs;
    const auto begin = file.blocks.begin();
    if (file.whole) {
      for (Block& block : file.blocks)
        if (block == Block::missing) block = Block::taken;
      file.missing = 0;
      return BlockRun{.file = i, .first_block = 0, .blocks = static_cast<std::int64_t>(file.blocks.size())};
    }
    const auto first = std::find(begin, file.blocks.end(), Block::missing);
    auto last = first;
    while (last != file.blocks.end() && *last == Block::missing && last - first < run_blocks_)
      *last++ = Block::taken;
    file.missing -= last - first;
    const auto begun = file.begun.find(first - begin);
    return BlockRun{.file = i,
                    .first_block = first - begin,
                    .blocks = last - first,
                    .skip = begun == file.begun.end() ? 0 : begun->second};
  }
  return std::nullopt;
}

bool DownloadQueue::finish(std::size_t index, std::int64_t at) {
  const std::lock_guard lock(mutex_);
  File& file = files_[index];
  Block& block = file.blocks[static_cast<std::size_t>(at)];
  if (block == Block::done) return false;
  file.missing -= block == Block::missing ? 1 : 0;
  block = Block::done;
  file.begun.erase(at);
  ++file.done;
  return file.done == static_cast<std::int64_t>(file.blocks.size());
}

void DownloadQueue::give_back(const BlockRun& run, std::int64_t at, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  File& file = files_[run.file];
  for (std::int64_t i = 0; i < run.blocks; ++i) {
    Block& block = file.blocks[static_cast<std::size_t>(run.first_block + i)];
    if (block != Block::taken) continue;
    block = Block::missing;
    ++file.missing;
    if (run.first_block + i == at && bytes > 0) file.begun[at] = bytes;
  }
  --file.runs;
}

void DownloadQueue::needs_whole(std::size_t file) {
  const std::lock_guard lock(mutex_);
  files_[file].whole = true;
}

void DownloadQueue::reset(std::size_t index) {
  const std::lock_guard lock(mutex_);
  File& file = files_[index];
  std::fill(file.blocks.begin(), file.blocks.end(), Block::missing);
  file.missing = static_cast<std::int64_t>(file.blocks.size());
  file.done = 0;
  file.begun.clear();
}

bool DownloadQueue::is_done(std::size_t file, std::int64_t block) const {
  const std::lock_guard lock(mutex_);
  return files_[file].blocks[static_cast<std::size_t>(block)] == Block::done;
}

std::int64_t DownloadQueue::done_blocks() const {
  const std::lock_guard lock(mutex_);
  std::int64_t done = 0;
  for (const File& file : files_) done += file.done;
  return done;
}

bool DownloadQueue::all_done() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(files_.begin(), files_.end(), [](const File& file) {
    return file.done == static_cast<std::int64_t>(file.blocks.size());
  });
}

}  // namespace nibble
