#include "app/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace nibble {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 30;
constexpr int passes = 8;

// Independent sums, so that the additions never wait for one another and the memory is all that counts. Lines
// may be asked for ahead: an Intel CPU (Emerald Rapids) then reads a sixth more.
template <bool asks_ahead>
std::uint64_t sum_words(const std::uint64_t* words, std::size_t count) {
  constexpr std::size_t line_words = 64 / sizeof(std::uint64_t), words_ahead = 64 * line_words;
  std::uint64_t sums[16] = {};
  for (std::size_t i = 0; i + 16 <= count; i += 16) {
    for (std::size_t word = 0; asks_ahead && word < 16; word += line_words)
      __builtin_prefetch(words + std::min(i + word + words_ahead, count), 0, 2);
    for (std::size_t lane = 0; lane < 16; ++lane) sums[lane] += words[i + lane];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

Result<double> measure_read_bandwidth(int threads) {
  NIBBLE_ASSIGN(Buffer buffer, Buffer::allocate(buffer_bytes));
  std::uint64_t* words = reinterpret_cast<std::uint64_t*>(buffer.data());
  constexpr int shares = 64;
  constexpr std::size_t words_a_share = buffer_bytes / sizeof(std::uint64_t) / shares;
  ThreadPool pool(threads);
  pool.parallel_for(shares, [&](int begin, int end) {
    for (std::size_t i = static_cast<std::size_t>(begin) * words_a_share;
         i < static_cast<std::size_t>(end) * words_a_share; ++i)
      words[i] = i;
  });
  std::vector<double> rates;
  std::atomic<std::uint64_t> total = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin_time = std::chrono::steady_clock::now();
    const auto sum = pass % 2 == 0 ? sum_words<false> : sum_words<true>;
    pool.parallel_for(shares, [&](int begin, int end) {
      total += sum(words + static_cast<std::size_t>(begin) * words_a_share,
                   static_cast<std::size_t>(end - begin) * words_a_share);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
    rates.push_back(static_cast<double>(buffer_bytes) / seconds);
  }
  // The sum of 0 .. n - 1 each pass: reads that were optimised away would not give it.
  constexpr std::uint64_t n = buffer_bytes / sizeof(std::uint64_t);
  if (total != static_cast<std::uint64_t>(passes) * (n / 2 * (n - 1)))
    return internal_error("a read pass gave a wrong sum");
  return *std::max_element(rates.begin(), rates.end());
}

}  // namespace nibble
