// Every kernel of this program against the scalar one of its family, on the machine it is about to run on.
// They must give the same bits.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "ops/attention/attention_kernels.h"
#include "ops/linear/dot_kernels.h"
#include "ops/row/row_kernels.h"

namespace nibble {

// The scalar kernels, which judge the others, are the last of each list.
struct KernelLists {
  std::span<const DotKernels> dots = dot_kernels();
  std::span<const AttentionKernels> attention = attention_kernels();
  std::span<const RowKernels> rows = row_kernels();
};

// Sizes that leave no path of a kernel out; those of a model take their place where there is one.
struct CheckShapes {
  int hidden = 352;
  int width = 160;  // of an expert
  int experts = 4;
  int top_k = 2;
  int heads = 8;
  int kv_heads = 2;
  int head_dim = 64;
  int positions = 600;
};

struct KernelCheck {
  std::string family;  // "products with mxfp4 weights"
  std::string kernel;  // "cpu_avx512"
  bool supported = false;
  bool equal = false;
  std::string what;  // the first difference
};

std::vector<KernelCheck> check_kernels(ThreadPool& threads, const CheckShapes& shapes = {},
                                       const KernelLists& lists = {});

}  // namespace nibble
