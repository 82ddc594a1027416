#include "base/check.h"
#include "ops/embedding/embedding.h"

namespace nibble {

void embedding(OpContext& context, std::span<const TokenId> ids, const Bf16Matrix& table, float* out) {
  context.threads.parallel_for(static_cast<int>(ids.size()), [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const TokenId id = ids[static_cast<std::size_t>(row)];
      NIBBLE_CHECK(id >= 0 && id < table.rows);
      const Bf16* entry = table.data + static_cast<std::int64_t>(id) * table.cols;
      float* to = out + static_cast<std::int64_t>(row) * table.cols;
      for (int i = 0; i < table.cols; ++i) to[i] = entry[i].to_float();
    }
  });
}

}  // namespace nibble
