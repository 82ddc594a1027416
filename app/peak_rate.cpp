#include "app/peak_rate.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/thread_pool.h"

namespace nibble {
namespace {

// Chains of dependent multiply-adds, more than latency times throughput of any CPU.
constexpr int chains = 12;
constexpr double pass_seconds = 0.02;
constexpr int passes = 7;

// Read where the compiler cannot know it, so that no loop can be computed beforehand.
const volatile float factor = 1e-6f;

struct Loop {
  std::string_view instruction;
  PeakValues values;
  bool (*supported)();
  double flops;                           // of one iteration
  float (*run)(std::int64_t iterations);  // a sum that depends on all of them
};

bool amx_has(unsigned kind) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_tile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kind) == 0 || (d & amx_tile) == 0) return false;
  // Linux gives a process the tiles' state when it asks for it.
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

bool amx_bf16_supported() { return amx_has(1u << 22); }
bool amx_int8_supported() { return amx_has(1u << 25); }

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_a_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Two and two tiles of factors, all of whose words are `word`, and four of totals, which are zero.
__attribute__((target("amx-tile"))) inline void load_tiles(std::uint32_t word) {
  const TileConfig config;
  // The intrinsic names eight bytes of its operand only; the rest must be in memory too.
  __asm__ volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
  alignas(64) std::uint32_t factors[16 * 16];
  std::fill_n(factors, 16 * 16, factor > 0 ? word : 0);
  __asm__ volatile("" ::"r"(factors) : "memory");
  _tile_loadd(4, factors, 64);
  _tile_loadd(5, factors, 64);
  _tile_loadd(6, factors, 64);
  _tile_loadd(7, factors, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// The first total of two of the tiles.
template <class Total>
__attribute__((target("amx-tile"))) inline float take_tiles() {
  alignas(64) Total totals[2][16 * 16] = {};
  _tile_stored(0, totals[0], 64);
  _tile_stored(3, totals[1], 64);
  __asm__ volatile("" ::"r"(totals) : "memory");
  _tile_release();
  return static_cast<float>(totals[0][0]) + static_cast<float>(totals[1][0]);
}

__attribute__((target("amx-tile,amx-bf16"))) float run_amx_bf16(std::int64_t iterations) {
  load_tiles(0x3a003a00);
  for (std::int64_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return take_tiles<float>();
}

__attribute__((target("amx-tile,amx-int8"))) float run_amx_int8(std::int64_t iterations) {
  load_tiles(0x01010101);
  for (std::int64_t i = 0; i < iterations; ++i) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  return take_tiles<std::int32_t>();
}

bool vnni_supported() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni"); }

__attribute__((target("avx512f,avx512vnni"))) float run_vnni(std::int64_t iterations) {
  const __m512i factors = _mm512_set1_epi8(factor > 0 ? 1 : 0);
  __m512i totals[chains];
  for (__m512i& total : totals) total = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (__m512i& total : totals) total = _mm512_dpbusd_epi32(total, factors, factors);
  }
  for (int i = 1; i < chains; ++i) totals[0] = _mm512_add_epi32(totals[0], totals[i]);
  return static_cast<float>(_mm_cvtsi128_si32(_mm512_castsi512_si128(totals[0])));
}

bool avx512_bf16_supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}

__attribute__((target("avx512f,avx512bf16"))) float run_avx512_bf16(std::int64_t iterations) {
  const __m512i bits = _mm512_set1_epi32(factor > 0 ? 0x3a003a00 : 0);
  __m512bh factors;
  std::memcpy(&factors, &bits, sizeof(factors));
  __m512 totals[chains];
  for (__m512& total : totals) total = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (__m512& total : totals) total = _mm512_dpbf16_ps(total, factors, factors);
  }
  for (int i = 1; i < chains; ++i) totals[0] = _mm512_add_ps(totals[0], totals[i]);
  return _mm512_cvtss_f32(totals[0]);
}

bool avx512_supported() { return __builtin_cpu_supports("avx512f"); }

__attribute__((target("avx512f"))) float run_avx512(std::int64_t iterations) {
  const __m512 factors = _mm512_set1_ps(factor);
  __m512 totals[chains];
  for (__m512& total : totals) total = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (__m512& total : totals) total = _mm512_fmadd_ps(factors, factors, total);
  }
  for (int i = 1; i < chains; ++i) totals[0] = _mm512_add_ps(totals[0], totals[i]);
  return _mm512_cvtss_f32(totals[0]);
}

bool fma_supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

__attribute__((target("avx2,fma"))) float run_fma(std::int64_t iterations) {
  const __m256 factors = _mm256_set1_ps(factor);
  __m256 totals[chains];
  for (__m256& total : totals) total = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (__m256& total : totals) total = _mm256_fmadd_ps(factors, factors, total);
  }
  for (int i = 1; i < chains; ++i) totals[0] = _mm256_add_ps(totals[0], totals[i]);
  return _mm256_cvtss_f32(totals[0]);
}

bool avx2_supported() { return __builtin_cpu_supports("avx2"); }

__attribute__((target("avx2"))) float run_avx2_int8(std::int64_t iterations) {
  __m256i factors = _mm256_set1_epi8(factor > 0 ? 1 : 0);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i totals[chains];
  for (__m256i& total : totals) total = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (__m256i& total : totals) {
      // The product is the same each time, and the compiler would take it out of the loop.
      __asm__("" : "+x"(factors));
      total = _mm256_add_epi32(total, _mm256_madd_epi16(_mm256_maddubs_epi16(factors, factors), ones));
    }
  }
  for (int i = 1; i < chains; ++i) totals[0] = _mm256_add_epi32(totals[0], totals[i]);
  return static_cast<float>(_mm_cvtsi128_si32(_mm256_castsi256_si128(totals[0])));
}

bool always_supported() { return true; }

float run_sse(std::int64_t iterations) {
  __m128 factors = _mm_set1_ps(factor);
  __m128 totals[chains];
  for (__m128& total : totals) total = _mm_setzero_ps();
  for (std::int64_t i = 0; i < iterations; ++i) {
    // The product is the same each time, and the compiler would take it out of the loop.
    __asm__("" : "+x"(factors));
    for (__m128& total : totals) total = _mm_add_ps(total, _mm_mul_ps(factors, factors));
  }
  for (int i = 1; i < chains; ++i) totals[0] = _mm_add_ps(totals[0], totals[i]);
  return _mm_cvtss_f32(totals[0]);
}

// Fastest first, but for VDPBF16PS on Intel.
constexpr Loop loops[] = {
    {"TDPBUSD", PeakValues::int8, amx_int8_supported, 4 * 2.0 * 16 * 16 * 64, run_amx_int8},
    {"VPDPBUSD", PeakValues::int8, vnni_supported, chains * 2.0 * 64, run_vnni},
    {"VPMADDUBSW and VPMADDWD", PeakValues::int8, avx2_supported, chains * 2.0 * 32, run_avx2_int8},
    {"TDPBF16PS", PeakValues::bfloat16, amx_bf16_supported, 4 * 2.0 * 16 * 16 * 32, run_amx_bf16},
    {"VDPBF16PS", PeakValues::bfloat16, avx512_bf16_supported, chains * 2.0 * 32, run_avx512_bf16},
    {"VFMADD, 512 bits", PeakValues::float32, avx512_supported, chains * 2.0 * 16, run_avx512},
    {"VFMADD, 256 bits", PeakValues::float32, fma_supported, chains * 2.0 * 8, run_fma},
    {"MULPS and ADDPS", PeakValues::float32, always_supported, chains * 2.0 * 4, run_sse},
};

// Seconds that all threads take together.
double time_pass(const Loop& loop, ThreadPool& pool, std::int64_t iterations, std::atomic<int>& good) {
  const auto begin = std::chrono::steady_clock::now();
  pool.parallel_for(pool.size(), [&](int share_begin, int share_end) {
    for (int share = share_begin; share < share_end; ++share) good += loop.run(iterations) > 0;
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of all threads, the best of some passes.
Result<double> rate_of(const Loop& loop, ThreadPool& pool) {
  std::atomic<int> good = 0;
  // Long enough for the clock and for a CPU that has to wake up its wide units.
  std::int64_t iterations = 1024;
  while (time_pass(loop, pool, iterations, good) < pass_seconds) iterations *= 2;
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) best = std::min(best, time_pass(loop, pool, iterations, good));
  if (good % pool.size() != 0) return internal_error("a pass of multiplications gave a wrong sum");
  return loop.flops * static_cast<double>(iterations) * pool.size() / best;
}

}  // namespace

Result<PeakRate> measure_peak_rate(int threads, PeakValues values) {
  // The first that runs here, or the one behind it: an Intel CPU starts four multiply-adds for one VDPBF16PS.
  ThreadPool pool(threads);
  PeakRate best;
  int tried = 0;
  for (const Loop& loop : loops) {
    if (tried == 2 || loop.values > values || !loop.supported()) continue;
    ++tried;
    NIBBLE_ASSIGN(const double flops, rate_of(loop, pool));
    if (flops > best.flops) best = {.flops = flops, .instruction = loop.instruction};
  }
  return best;
}

}  // namespace nibble
