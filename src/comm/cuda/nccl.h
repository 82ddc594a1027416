// What nibble calls of NVIDIA's collectives, found in libnccl.so.2 when they are first asked for: neither the
// build nor a program that does not use them needs the library.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/status.h"

namespace nibble {

struct NcclId {
  char bytes[128];
};
using NcclComm = struct NcclCommunicator*;

// Results are 0 for success.
struct NcclFunctions {
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank)(NcclComm* made, int ranks, NcclId id, int rank) = nullptr;
  int (*comm_abort)(NcclComm comm) = nullptr;  // what is queued ends, and the communicator with it
  int (*comm_get_async_error)(NcclComm comm, int* error) = nullptr;
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation, NcclComm comm,
                    cudaStream_t stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
};
inline constexpr int nccl_uint32 = 3, nccl_sum = 0;  // ncclUint32, ncclSum

// Refused where the library or one of its functions is missing.
Result<const NcclFunctions*> nccl_functions();

}  // namespace nibble
