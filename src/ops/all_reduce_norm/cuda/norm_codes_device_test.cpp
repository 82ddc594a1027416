// On two GPUs or more, or on emulated ones: norms of sums over ranks as codes with their scales, against
// those that one GPU's norm in bfloat16 is rounded to.
#include <limits>
#include <memory>

#include "formats/e4m3_row.h"
#include "formats/nvfp4.h"
#include "ops/all_reduce_norm/cuda/all_reduce_norm_device_test_util.h"
#include "ops/linear/cuda/rounded_rows.h"

namespace nibble {
namespace {

using namespace sums;

class NormCodesOnGpus : public AllReduceNormOnGpus {};

// FP4 below one global scale, or one a row.
enum class Form { fp8, fp4, fp4_rows };
constexpr Form forms[] = {Form::fp8, Form::fp4, Form::fp4_rows};
// Variants where codes travel: one whose residual stays at its owner, and one without.
constexpr const Variant &at_owner = variants[2], &alone = variants[4];
bool takes(Form form, int hidden) { return form == Form::fp8 || hidden % 16 == 0; }

// Unwritten bytes, and what stands behind the rows.
constexpr std::uint8_t unwritten = 0xcd;
constexpr std::size_t behind = 16;

struct Codes {
  std::vector<std::uint8_t> codes, scales;

  static Codes unwritten_of(const SumShape& shape, Form form) {
    const std::size_t scales = form == Form::fp8 ? static_cast<std::size_t>(shape.rows) * sizeof(float)
                                                 : shape.count() / nvfp4_block;
    return {std::vector<std::uint8_t>(shape.count() / (form == Form::fp8 ? 1 : 2) + behind, unwritten),
            std::vector<std::uint8_t>(scales + behind, unwritten)};
  }
};

std::vector<float> global_scales_of(int rows) {
  std::vector<float> scales;
  for (int i = 0; i < rows; ++i) scales.push_back(std::ldexp(1.0f + 0.3f * static_cast<float>(i % 3), i % 9));
  return scales;
}

// What the norm of one GPU, [rows, hidden], is rounded to.
Codes codes_of(const std::vector<Bf16>& norm, const SumShape& shape, Form form,
               const std::vector<float>& global_scales) {
  Codes codes = Codes::unwritten_of(shape, form);
  const std::size_t hidden = static_cast<std::size_t>(shape.hidden);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
    std::vector<float> values;
    for (std::size_t i = 0; i < hidden; ++i) values.push_back(norm[row * hidden + i].to_float());
    if (form == Form::fp8) {
      const float scale = e4m3_row_codes(values, codes.codes.data() + row * hidden);
      std::memcpy(codes.scales.data() + row * sizeof scale, &scale, sizeof scale);
      continue;
    }
    for (std::size_t i = 0; i < hidden; i += nvfp4_block) {
      const std::size_t at = row * hidden + i;
      codes.scales[at / nvfp4_block] =
          nvfp4_encode_block(values.data() + i, global_scales[form == Form::fp4 ? 0 : row],
                             codes.codes.data() + at / 2)
              .bits;
    }
  }
  return codes;
}

// Where a rank's codes go.
struct CodesRoom {
  SumShape shape;
  Form form;
  DeviceBuffer codes, scales, global_scales;

  CodesRoom(const SumShape& of, Form as, const std::vector<float>& globals)
      : shape(of), form(as), global_scales(on_device(globals)) {
    const Codes empty = Codes::unwritten_of(shape, form);
    codes = on_device(empty.codes);
    scales = on_device(empty.scales);
  }
  NormCudaOutput output() {
    if (form == Form::fp8) return E4m3Rows{codes.as<std::uint8_t>(), scales.as<float>()};
    return Nvfp4Rows{codes.as<std::uint8_t>(), scales.as<std::uint8_t>(), global_scales.as<float>(),
                     form == Form::fp4 ? 1 : shape.rows};
  }
  void clear() {
    codes.fill(unwritten);
    scales.fill(unwritten);
  }
  void expect(const Codes& expected) const {
    Codes found = Codes::unwritten_of(shape, form);
    codes.copy_to(std::span(found.codes));
    scales.copy_to(std::span(found.scales));
    EXPECT_TRUE(same(found.codes, expected.codes));
    EXPECT_TRUE(same(found.scales, expected.scales));
  }
};

struct Run {
  int ranks;
  SumShape shape;
  Variant variant;
  Algorithm algorithm;
  Form form;
  bool ahead = false;  // parts are pushed by the kernel ahead
  float eps = 1e-5f;
};

void expect_codes_of(const PeerWorkspace& workspace, const Run& run, const Case& c,
                     const std::vector<float>& global_scales, const Codes& expected,
                     const std::vector<float>& residual_then) {
  SCOPED_TRACE(std::string(run.variant.name) + ", " + algorithm_name(run.algorithm) + ", form " +
               std::to_string(static_cast<int>(run.form)) + ", " + std::to_string(run.ranks) + " ranks, " +
               std::to_string(run.shape.rows) + " rows of " + std::to_string(run.shape.hidden));
  on_each_gpu(first_ranks(run.ranks), [&](int rank, cudaStream_t stream) {
    DeviceBuffer parts = on_device(c.parts[static_cast<std::size_t>(rank)]), residual = on_device(c.residual);
    DeviceBuffer weight = on_device(c.weight);
    CodesRoom room(run.shape, run.form, global_scales);
    const PeerGroup& group = workspace.member(rank);
    if (run.ahead) {
      EXPECT_TRUE(push_parts_cuda(group, parts.as<float>(), run.shape.rows, stream).ok());
    }
    const Status status =
        all_reduce_norm_cuda(group,
                             {.parts = run.ahead ? nullptr : parts.as<float>(),
                              .residual = run.variant.residual ? residual.as<float>() : nullptr,
                              .weight = run.variant.norm ? weight.as<Bf16>() : nullptr,
                              .weight_less_one = run.variant.less_one,
                              .residual_at_owner = run.variant.at_owner,
                              .out = room.output(),
                              .rows = run.shape.rows,
                              .hidden = run.shape.hidden,
                              .eps = run.eps,
                              .algorithm = run.algorithm},
                             stream);
    EXPECT_TRUE(status.ok()) << status.message();
    cuda_check(cudaStreamSynchronize(stream));
    EXPECT_EQ(workspace.failure(rank).message(), "");
    room.expect(expected);
    std::vector<float> found(run.shape.count());
    residual.copy_to(std::span(found));
    const std::size_t hidden = static_cast<std::size_t>(run.shape.hidden);
    for (int row = 0; row < run.shape.rows && run.variant.residual; ++row) {
      const bool written = !run.variant.at_owner || run.algorithm == Algorithm::one_shot ||
                           owner_of_row(row, run.ranks) == rank;
      const std::vector<float>& right = written ? residual_then : c.residual;
      const std::size_t at = static_cast<std::size_t>(row) * hidden;
      EXPECT_EQ(std::memcmp(found.data() + at, right.data() + at, hidden * 4), 0) << "rank " << rank;
    }
  });
}

void expect_codes_of_one_gpu(const PeerWorkspace& workspace, const Run& run) {
  const Case c =
      case_of(static_cast<unsigned>(run.shape.rows * 7 + run.ranks), run.ranks, run.shape, run.variant);
  const std::vector<float> global_scales = global_scales_of(run.shape.rows);
  const Answer one = of_one_gpu(c, run.shape, run.shape.hidden);
  expect_codes_of(workspace, run, c, global_scales,
                  run.variant.norm ? codes_of(one.out, run.shape, run.form, global_scales)
                                   : Codes::unwritten_of(run.shape, run.form),
                  one.residual);
}

TEST_F(NormCodesOnGpus, AreThoseOfOneGpusNormInEveryVariantAndSize) {
  std::vector<SumShape> shapes = {{1, 2880}, {3, 72}, {3, 80}, {2, 4112}};
  if (!small_cases) {
    shapes.insert(shapes.end(), {{8, 2880},
                                 {17, 2880},
                                 {40, 2880},
                                 {128, 2880},
                                 {5, 8},
                                 {5, 16},
                                 {512, 2880},
                                 {300, 4112},
                                 {33, 12256}});
  }
  for (const int ranks : group_sizes()) {
    for (const SumShape& shape : shapes) {
      const auto workspace = workspace_of(first_ranks(ranks), shape.rows, shape.hidden);
      for (const Variant& variant : variants) {
        for (const Form form : forms) {
          if (!takes(form, shape.hidden) || (small_cases && form == Form::fp4)) continue;
          for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
            expect_codes_of_one_gpu(*workspace, {ranks, shape, variant, algorithm, form});
          if (!small_cases || variant.less_one)
            expect_codes_of_one_gpu(*workspace, {ranks, shape, variant, Algorithm::one_shot, form, true});
        }
      }
    }
  }
}

// By pairs of blocks, of which some have one row and some two.
TEST_F(NormCodesOnGpus, PairsOfBlocksTakeSeveralRowsEach) {
  const SumShape shape{136, 128};
  const auto workspace = workspace_of(first_ranks(2), shape.rows, shape.hidden);
  for (const Form form : {Form::fp8, Form::fp4_rows}) {
    for (const Variant& variant : {variants[0], at_owner})
      expect_codes_of_one_gpu(*workspace, {2, shape, variant, Algorithm::two_shot, form});
    expect_codes_of_one_gpu(*workspace, {2, {104, 128}, variants[1], Algorithm::one_shot, form});
  }
}

// More rows than a launch takes: in several, with scales of their own.
TEST_F(NormCodesOnGpus, AreCutWhereRowsExceedAWindow) {
  const SumShape shape{small_cases ? 7 : 8192, small_cases ? 64 : 2880};
  const int ranks = group_sizes().back();
  const auto workspace = workspace_of(first_ranks(ranks), small_cases ? 3 : 512, shape.hidden);
  for (const Form form : forms) {
    for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
      expect_codes_of_one_gpu(*workspace, {ranks, shape, alone, algorithm, form});
  }
}

TEST_F(NormCodesOnGpus, Fp8IsWhatRoundRowsMakesOfTheNorm) {
  const SumShape shape{5, 144};
  const auto workspace = workspace_of(first_ranks(2), shape.rows, shape.hidden);
  const Case c = case_of(8, 2, shape, alone);
  const Answer one = of_one_gpu(c, shape, shape.hidden);
  DeviceBuffer norm = on_device(one.out);
  const int bytes = rounded_row_bytes(shape.hidden);
  std::vector<std::uint8_t> rounded(static_cast<std::size_t>(shape.rows * bytes));
  DeviceBuffer codes = device_bytes(rounded.size(), 0),
               scales = device_bytes(static_cast<std::size_t>(shape.rows) * 4, 0);
  round_rows_cuda({.x = norm.as<Bf16>(),
                   .x_stride = shape.hidden,
                   .rows = shape.rows,
                   .cols = shape.hidden,
                   .to = {codes.as<std::uint8_t>(), scales.as<float>()}},
                  nullptr);
  codes.copy_to(std::span(rounded));
  Codes expected = Codes::unwritten_of(shape, Form::fp8);
  scales.copy_to(std::span(expected.scales).first(static_cast<std::size_t>(shape.rows) * 4));
  for (int row = 0; row < shape.rows; ++row) {
    for (int sixteen = 0; sixteen < shape.hidden / 16; ++sixteen) {
      for (int i = 0; i < 16; ++i) {
        const int element = rounded_element(ColumnOrder::quarters, i / 4, i % 4);
        const int at = sixteen / 4 * block_k + rounded_word_place(ColumnOrder::quarters, sixteen % 4, i / 4);
        expected.codes[static_cast<std::size_t>(row * shape.hidden + sixteen * 16 + element)] =
            rounded[static_cast<std::size_t>(row * bytes + at + i % 4)];
      }
    }
  }
  for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot})
    expect_codes_of(*workspace, {2, shape, alone, algorithm, Form::fp8}, c, {1.0f}, expected, {});
}

// Rows of ones, whose norm is the weight.
struct Weights {
  const char* what;
  std::vector<float> of_block[4];
};

TEST_F(NormCodesOnGpus, TiesZerosNanAndInfinityAreData) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> ties = {0,   -0.0f, 0.25f, -0.25f, 0.75f, -0.75f, 1.25f, 1.75f,
                                   2.5, 3.5f,  5.0f,  -5.0f,  6.0f,  -6.0f,  0.5f,  1.0f};
  const std::vector<float> lowest(16, -6.0f), zeros(16, 0.0f), minus_zeros(16, -0.0f), nans(16, -nan);
  std::vector<float> one_nan = ties, one_infinity = ties, tiny(16, 0x1p-120f), huge(16, 0x1p127f);
  one_nan[5] = nan;
  one_infinity[15] = -infinity;
  const Weights cases[] = {{"ties", {ties, lowest, zeros, minus_zeros}},
                           {"zeros", {zeros, minus_zeros, zeros, zeros}},
                           {"far apart", {tiny, lowest, huge, ties}},
                           {"tiny", {tiny, zeros, tiny, tiny}},
                           {"no numbers", {one_nan, ties, one_infinity, nans}}};
  const SumShape shape{3, 64};
  const auto workspace = workspace_of(first_ranks(2), shape.rows, shape.hidden);
  for (const Weights& each : cases) {
    SCOPED_TRACE(each.what);
    Case c = case_of(1, 2, shape, alone);
    c.parts = {std::vector<float>(shape.count(), 1.0f), std::vector<float>(shape.count(), -0.0f)};
    c.weight.clear();
    for (const auto& block : each.of_block) {
      for (const float value : block) c.weight.push_back(Bf16::from_float(value));
    }
    std::vector<Bf16> norm;
    for (int row = 0; row < shape.rows; ++row) norm.insert(norm.end(), c.weight.begin(), c.weight.end());
    const std::vector<float> global_scales = {1.0f, 448.0f, 0x1p-20f};
    for (const Form form : forms) {
      const Codes expected = codes_of(norm, shape, form, global_scales);
      for (const Algorithm algorithm : {Algorithm::one_shot, Algorithm::two_shot}) {
        expect_codes_of(*workspace, {2, shape, alone, algorithm, form, false, 0.0f}, c, global_scales,
                        expected, {});
      }
      if (form != Form::fp4) continue;
      const auto block = [&](std::size_t i) {
        return std::vector<std::uint8_t>(expected.codes.begin() + static_cast<std::ptrdiff_t>(i * 8),
                                         expected.codes.begin() + static_cast<std::ptrdiff_t>(i * 8 + 8));
      };
      const std::string what = each.what;
      if (what == "ties") {
        EXPECT_EQ(block(0), (std::vector<std::uint8_t>{0x80, 0x80, 0xa2, 0x42, 0x64, 0xe6, 0xf7, 0x21}));
        EXPECT_EQ(block(1), std::vector<std::uint8_t>(8, 0xff)) << "all bits of codes may be ones";
        EXPECT_EQ(block(2), std::vector<std::uint8_t>(8, 0x00));
        EXPECT_EQ(block(3), std::vector<std::uint8_t>(8, 0x88));
        EXPECT_EQ(std::vector<std::uint8_t>(expected.scales.begin(), expected.scales.begin() + 4),
                  (std::vector<std::uint8_t>{0x38, 0x38, 0, 0}));
      }
      if (what == "no numbers") {
        EXPECT_EQ(std::vector<std::uint8_t>(expected.scales.begin(), expected.scales.begin() + 4),
                  (std::vector<std::uint8_t>{0x7f, 0x38, 0x7f, 0x7f}));
        EXPECT_EQ(block(0), std::vector<std::uint8_t>(8, 0x00));
      }
    }
  }
}

// Calls without a pause, of changing size, algorithm and form, eager and in replayed graphs, in one window.
struct CodesStress {
  struct Call {
    SumShape shape;
    Algorithm algorithm;
    Form form;
    bool in_bf16;  // instead, in between
    Case c;
    Codes expected;
    std::vector<Bf16> norm;
  };
  int ranks;
  std::vector<Call> list;
  std::vector<float> global_scales = global_scales_of(40);
  std::unique_ptr<PeerWorkspace> workspace;

  CodesStress(int of_ranks, unsigned seed, int hidden, int calls) : ranks(of_ranks) {
    const int most = small_cases ? 3 : 40;
    workspace = workspace_of(first_ranks(ranks), most, hidden);
    std::mt19937 random(seed);
    for (int i = 0; i < calls; ++i) {
      Call call{.shape = {1 + static_cast<int>(random() % static_cast<unsigned>(most)), hidden},
                .algorithm = random() % 3 == 0 ? Algorithm::one_shot : Algorithm::two_shot,
                .form = forms[random() % 3],
                .in_bf16 = random() % 4 == 0,
                .c = {},
                .expected = {},
                .norm = {}};
      call.c = case_of(static_cast<unsigned>(random()), ranks, call.shape, alone);
      call.norm = of_one_gpu(call.c, call.shape, hidden).out;
      call.expected = codes_of(call.norm, call.shape, call.form, global_scales);
      list.push_back(std::move(call));
    }
  }

  // A rank's memory for one call.
  struct Memory {
    DeviceBuffer parts, weight, norm;
    CodesRoom room;
  };

  void queue(int rank, std::vector<Memory>& memory, cudaStream_t stream) const {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Call& call = list[i];
      const NormCudaOutput bf16 = Bf16Rows{memory[i].norm.as<Bf16>(), call.shape.hidden};
      const Status status = all_reduce_norm_cuda(workspace->member(rank),
                                                 {.parts = memory[i].parts.as<float>(),
                                                  .weight = memory[i].weight.as<Bf16>(),
                                                  .out = call.in_bf16 ? bf16 : memory[i].room.output(),
                                                  .rows = call.shape.rows,
                                                  .hidden = call.shape.hidden,
                                                  .eps = 1e-5f,
                                                  .algorithm = call.algorithm},
                                                 stream);
      NIBBLE_CHECK(status.ok(), status.message());
    }
  }

  // What is there is right, and is made away with.
  void expect_and_clear(std::vector<Memory>& memory) const {
    for (std::size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE("call " + std::to_string(i));
      if (list[i].in_bf16) {
        std::vector<Bf16> found(list[i].norm.size());
        memory[i].norm.copy_to(std::span(found));
        EXPECT_TRUE(same(found, list[i].norm));
        memory[i].norm.fill(unwritten);
      } else {
        memory[i].room.expect(list[i].expected);
        memory[i].room.clear();
      }
    }
    cuda_check(cudaDeviceSynchronize());
  }

  void run(int replays) const {
    on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
      std::vector<Memory> memory;
      for (const Call& call : list) {
        memory.push_back({on_device(call.c.parts[static_cast<std::size_t>(rank)]), on_device(call.c.weight),
                          device_bytes(call.norm.size() * 2, unwritten),
                          CodesRoom(call.shape, call.form, global_scales)});
      }
      queue(rank, memory, stream);
      cuda_check(cudaStreamSynchronize(stream));
      expect_and_clear(memory);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      queue(rank, memory, stream);
      cuda_check(cudaStreamEndCapture(stream, &graph));
      cuda_check(cudaGraphInstantiate(&exec, graph, 0));
      for (int i = 0; i < replays; ++i) {
        cuda_check(cudaGraphLaunch(exec, stream));
        if (i % 16 != 0 && i + 1 != replays) continue;
        cuda_check(cudaStreamSynchronize(stream));
        expect_and_clear(memory);
      }
      cuda_check(cudaGraphExecDestroy(exec));
      cuda_check(cudaGraphDestroy(graph));
      EXPECT_EQ(workspace->failure(rank).message(), "");
    });
  }
};

TEST_F(NormCodesOnGpus, StandManyCallsOfChangingSizeAlgorithmAndForm) {
  for (const int ranks : group_sizes()) {
    for (unsigned seed = 1; seed <= (small_cases ? 1u : 5u); ++seed) {
#ifdef NIBBLE_GPU_EMULATION
      emulation::schedule_seed = seed;
#endif
      CodesStress(ranks, seed, 64, small_cases ? 12 : 50).run(small_cases ? 2 : 400);
    }
    // Rows too wide for clusters.
    CodesStress(ranks, 99, 4112, small_cases ? 6 : 20).run(small_cases ? 1 : 50);
  }
}

TEST_F(NormCodesOnGpus, RefuseWhatHasNoRoom) {
  const auto workspace = workspace_of(first_ranks(2), 4, 72);
  DeviceBuffer memory = device_bytes(72 * 4 * 8, 0);
  const auto said = [&](const NormCudaOutput& out) {
    return all_reduce_norm_cuda(workspace->member(0),
                                {.parts = memory.as<float>(),
                                 .weight = memory.as<Bf16>(),
                                 .out = out,
                                 .rows = 2,
                                 .hidden = 72},
                                nullptr)
        .message();
  };
  std::uint8_t* const bytes = memory.as<std::uint8_t>();
  EXPECT_EQ(said(E4m3Rows{nullptr, memory.as<float>()}),
            "all_reduce_norm to FP8 needs room for codes and for a float32 scale a row");
  EXPECT_EQ(said(Nvfp4Rows{bytes, bytes, memory.as<float>()}),
            "all_reduce_norm to FP4 takes a multiple of 16 columns, which share a scale, not 72");
}

}  // namespace
}  // namespace nibble
