#include "hub/download_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace nibble {
namespace {

TEST(DownloadQueue, GivesRunsOfWhatIsMissing) {
  DownloadQueue queue;
  queue.set_run_blocks(3);
  queue.add({0, 0, 1, 0, 0, 0, 0});
  const BlockRun first = *queue.take();
  EXPECT_EQ(first.first_block, 0);
  EXPECT_EQ(first.blocks, 2);
  EXPECT_EQ(queue.take()->first_block, 3);
  EXPECT_EQ(queue.take()->first_block, 6);
  EXPECT_FALSE(queue.take());
  queue.give_back(first);
  EXPECT_EQ(queue.take()->first_block, 0);
}

TEST(DownloadQueue, GoesOnWithinABlockThatHasBegun) {
  DownloadQueue queue;
  queue.add({0, 0});
  const BlockRun run = *queue.take();
  EXPECT_FALSE(queue.finish(0, 0));
  queue.give_back(run, 1, 77);
  const BlockRun rest = *queue.take();
  EXPECT_EQ(rest.first_block, 1);
  EXPECT_EQ(rest.skip, 77);
  EXPECT_TRUE(queue.finish(0, 1));
}

TEST(DownloadQueue, AWholeFileIsOneConnectionsAlone) {
  DownloadQueue queue;
  queue.set_run_blocks(1);
  queue.add({0, 0, 0});
  const BlockRun a = *queue.take();
  const BlockRun b = *queue.take();
  queue.finish(0, 0);
  queue.needs_whole(0);
  queue.give_back(a);
  EXPECT_FALSE(queue.take()) << "while another connection still has a part";
  queue.give_back(b, 1, 5);
  const BlockRun whole = *queue.take();
  EXPECT_EQ(whole.first_block, 0);
  EXPECT_EQ(whole.blocks, 3);
  EXPECT_EQ(whole.skip, 0);
  EXPECT_FALSE(queue.take());
}

// Any number of connections that fail at random: no block is in two hands, and in the end all are there, each
// file's end told once.
TEST(DownloadQueue, EveryBlockComesOnceWhateverFails) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](int below) {
      return static_cast<int>(random() % static_cast<unsigned>(below));
    };
    DownloadQueue queue;
    queue.set_run_blocks(1 + draw(5));
    std::vector<std::vector<char>> done;
    for (int file = 0; file < 4; ++file) {
      done.emplace_back(static_cast<std::size_t>(1 + draw(20)));
      for (char& block : done.back()) block = draw(4) == 0 ? 1 : 0;
      queue.add(done.back());
    }
    std::vector<BlockRun> held;
    std::map<std::pair<std::size_t, std::int64_t>, int> hands;
    std::map<std::size_t, int> ends;
    while (!queue.all_done()) {
      if (held.size() < 6 && draw(2) == 0) {
        if (const std::optional<BlockRun> run = queue.take()) {
          held.push_back(*run);
          for (std::int64_t i = 0; i < run->blocks; ++i) {
            if (queue.is_done(run->file, run->first_block + i)) continue;
            const auto block = std::pair(run->file, run->first_block + i);
            ASSERT_EQ(hands[block]++, 0) << seed;
          }
        }
        continue;
      }
      if (held.empty()) continue;
      const auto at = static_cast<std::size_t>(draw(static_cast<int>(held.size())));
      const BlockRun run = held[at];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
      const std::int64_t came = draw(static_cast<int>(run.blocks) + 1);
      for (std::int64_t i = 0; i < run.blocks; ++i) {
        const auto block = std::pair(run.file, run.first_block + i);
        hands[block] = 0;
        if (i < came && !queue.is_done(block.first, block.second))
          ends[run.file] += queue.finish(block.first, block.second);
      }
      if (draw(20) == 0) queue.needs_whole(run.file);
      queue.give_back(run, run.first_block + came, came < run.blocks ? 1 : 0);
    }
    for (std::size_t file = 0; file < done.size(); ++file) {
      const bool was_whole = std::find(done[file].begin(), done[file].end(), 0) == done[file].end();
      EXPECT_EQ(ends[file], was_whole ? 0 : 1) << seed;
    }
  }
}

}  // namespace
}  // namespace nibble
