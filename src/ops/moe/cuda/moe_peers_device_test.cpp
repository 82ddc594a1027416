// On two GPUs or more, or on emulated ones: experts of several ranks, whose products pass between them,
// against one GPU's.
#include "comm/cuda/on_device.h"
#include "comm/cuda/peer_rooms.h"
#include "comm/cuda/peer_test_util.h"
#include "ops/cuda/absent.h"
#include "ops/moe/cuda/moe_device_test_util.h"

namespace nibble {
namespace {

class MoePeersOnGpus : public OnSeveralGpus {};

constexpr int experts = 12, top_k = 3, hidden = 192, width = 192, tokens = 20, slots = tokens * top_k;

// Each product, of the experts that a rank takes or of all.
std::vector<float> products_of(MoeTestLayer<Mxfp4Weights>& layer, const std::vector<Bf16>& x,
                               const MoeRouting& routing, const MoeCudaArgs& asked, cudaStream_t stream) {
  DeviceBuffer on_gpu = on_device(x), ids = on_device(routing.ids), weights = on_device(routing.weights);
  DeviceBuffer activations = device_bytes(slots * width * 2, 0),
               products = device_bytes(slots * hidden * 4, 0xff);
  MoeCudaArgs args = asked;
  args.x = on_gpu.as<Bf16>();
  args.x_stride = hidden;
  args.tokens = tokens;
  args.top_k = top_k;
  args.expert_ids = ids.as<std::int32_t>();
  args.expert_weights = weights.as<float>();
  args.workspace = {.activations = activations.as<Bf16>(),
                    .products = products.as<float>(),
                    .arrived = layer.arrived.as<std::uint32_t>()};
  const MoeMxfp4CudaWeights on_device_weights{.gate_up = layer.gate_up.view(),
                                              .down = layer.down.view(),
                                              .gate_up_bias = layer.device_gate_up_bias.as<Bf16>(),
                                              .down_bias = layer.device_down_bias.as<Bf16>(),
                                              .unit = layer.unit};
  const Status status = moe_few_cuda(on_device_weights, args, stream);
  NIBBLE_CHECK(status.ok(), status.message());
  cuda_check(cudaStreamSynchronize(stream));
  std::vector<float> found(slots * hidden);
  products.copy_to(std::span(found));
  return found;
}

TEST_F(MoePeersOnGpus, AllRanksHaveTheProductsOfOneGpu) {
  const auto layer_of = [] {
    std::mt19937 random(3);
    return MoeTestLayer<Mxfp4Weights>(random, experts, top_k, hidden, width);
  };
  std::mt19937 random(4);
  const std::vector<Bf16> x = random_bf16(random, tokens * hidden);
  const MoeRouting routing(random, tokens, experts, top_k);
  std::vector<float> alone;
  {
    auto layer = layer_of();
    layer.upload();
    alone = products_of(layer, x, routing, {}, nullptr);
  }
  for (const int ranks : group_sizes()) {
    for (const int blocks : {1, 100}) {
      const std::size_t floats = slots * hidden;
      auto rooms = PeerRooms::make(first_ranks(ranks).members, floats * 4, patient);
      ASSERT_TRUE(rooms.ok()) << rooms.status().message();
      SlotOwners owners;
      for (int rank = 0; rank <= ranks; ++rank) owners.first_expert[rank] = rank * experts / ranks;
      for (int rank = 0; rank < ranks; ++rank) {
        const OnDevice on(rank);
        make_absent(reinterpret_cast<float*>(rooms.value()->content(rank)), floats, nullptr);
        cuda_check(cudaDeviceSynchronize());
      }
      on_each_gpu(first_ranks(ranks), [&](int rank, cudaStream_t stream) {
        auto layer = layer_of();
        layer.upload();
        const std::vector<float> found =
            products_of(layer, x, routing,
                        {.share = {.begin = owners.first_expert[rank], .end = owners.first_expert[rank + 1]},
                         .peers = {.room = &rooms.value()->of(rank),
                                   .window = reinterpret_cast<float*>(rooms.value()->content(rank)),
                                   .owners = owners},
                         .blocks = blocks},
                        stream);
        EXPECT_EQ(found, alone) << "rank " << rank << " of " << ranks << ", " << blocks << " blocks";
        EXPECT_TRUE(rooms.value()->failure(rank).ok()) << rooms.value()->failure(rank).message();
      });
    }
  }
}

}  // namespace
}  // namespace nibble
