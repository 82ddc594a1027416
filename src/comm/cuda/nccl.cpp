#include "comm/cuda/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace nibble {
namespace {

Result<NcclFunctions> find_functions() {
  // It reads this when a communicator is made. Sums by NVLink multicast need a fabric manager that allows it,
  // and what is merged here is too little to gain from them.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return invalid_argument(std::string("NCCL does not open: ") + dlerror());
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  NcclFunctions found;
  find("ncclGetUniqueId", found.get_unique_id);
  find("ncclCommInitRank", found.comm_init_rank);
  find("ncclCommAbort", found.comm_abort);
  find("ncclCommGetAsyncError", found.comm_get_async_error);
  find("ncclAllReduce", found.all_reduce);
  find("ncclGetErrorString", found.get_error_string);
  if (!missing.empty()) return invalid_argument("libnccl.so.2 has no " + missing);
  return found;
}

}  // namespace

Result<const NcclFunctions*> nccl_functions() {
  static const Result<NcclFunctions> found = find_functions();
  if (!found.ok()) return found.status();
  return &*found;
}

}  // namespace nibble
