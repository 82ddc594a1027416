#include "comm/cuda/peer_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "tensor/cuda_check.h"

namespace nibble {
namespace {

// The driver's own functions: the runtime has none for this, and the program does not link the driver.
struct Driver {
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;

  Status find_all() {
    NIBBLE_RETURN_IF_ERROR(find("cuMemCreate", create));
    NIBBLE_RETURN_IF_ERROR(find("cuMemRelease", release));
    NIBBLE_RETURN_IF_ERROR(find("cuMemAddressReserve", reserve));
    NIBBLE_RETURN_IF_ERROR(find("cuMemAddressFree", free_address));
    NIBBLE_RETURN_IF_ERROR(find("cuMemMap", map));
    NIBBLE_RETURN_IF_ERROR(find("cuMemUnmap", unmap));
    NIBBLE_RETURN_IF_ERROR(find("cuMemSetAccess", set_access));
    NIBBLE_RETURN_IF_ERROR(find("cuMemExportToShareableHandle", export_handle));
    NIBBLE_RETURN_IF_ERROR(find("cuMemImportFromShareableHandle", import_handle));
    return find("cuMemGetAllocationGranularity", granularity);
  }

 private:
  template <class Function>
  static Status find(const char* name, Function& function) {
    constexpr unsigned version = 12000;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) != cudaSuccess ||
        found == nullptr) {
      cudaGetLastError();
      return internal_error(std::string("the driver has no ") + name +
                            ", which several GPUs need; a driver for CUDA 12 or later has it");
    }
    function = reinterpret_cast<Function>(found);
    return {};
  }
};

Status check(CUresult result, const char* what, int device) {
  if (result == CUDA_SUCCESS) return {};
  const std::string where = std::string(what) + " on GPU " + std::to_string(device) +
                            " failed with CUDA error " + std::to_string(static_cast<int>(result));
  return result == CUDA_ERROR_OUT_OF_MEMORY ? resource_exhausted("no memory that GPUs share: " + where)
                                            : internal_error("memory that GPUs share: " + where);
}

enum class Users : bool { this_process, several };

CUmemAllocationProp properties_of(int device, Users users) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  // Has to be known when memory is made.
  if (users == Users::several) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

class MappedWindows : public PeerMemory {
 public:
  ~MappedWindows() override {
    for (const Allocation& allocation : allocations_) {
      if (allocation.mapped) driver_.unmap(allocation.address, bytes_);
      if (allocation.address != 0) driver_.free_address(allocation.address, bytes_);
      if (allocation.handle != 0) driver_.release(allocation.handle);
    }
  }

  Status map(const PeerDevices& devices, std::size_t bytes) {
    NIBBLE_RETURN_IF_ERROR(driver_.find_all());
    const Users users = devices.others == nullptr ? Users::this_process : Users::several;
    std::size_t granularity = 1;
    for (const int device : devices.here) {
      const CUmemAllocationProp properties = properties_of(device, users);
      std::size_t own = 0;
      NIBBLE_RETURN_IF_ERROR(
          check(driver_.granularity(&own, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                "cuMemGetAllocationGranularity", device));
      granularity = std::max(granularity, own);
    }
    bytes_ = (bytes + granularity - 1) / granularity * granularity;
    std::vector<CUmemGenericAllocationHandle> made;
    for (const int device : devices.here) {
      const CUmemAllocationProp properties = properties_of(device, users);
      CUmemGenericAllocationHandle handle = 0;
      NIBBLE_RETURN_IF_ERROR(check(driver_.create(&handle, bytes_, &properties, 0), "cuMemCreate", device));
      allocations_.push_back({.handle = handle});
      made.push_back(handle);
    }
    windows_.resize(static_cast<std::size_t>(devices.ranks()));
    for (std::size_t i = 0; i < made.size(); ++i) {
      const int rank = devices.first + static_cast<int>(i);
      NIBBLE_RETURN_IF_ERROR(map_at(allocations_[i], rank, devices));
    }
    if (devices.others == nullptr) return {};
    NIBBLE_ASSIGN(const std::vector<Descriptor> own, files_of(made, devices));
    return take_others(own, devices);
  }

 private:
  struct Allocation {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    bool mapped = false;
  };

  // For all devices of this process, as the window of that rank.
  Status map_at(Allocation& allocation, int rank, const PeerDevices& devices) {
    const int device = devices.has(rank) ? devices.here[static_cast<std::size_t>(rank - devices.first)]
                                         : devices.here.front();
    NIBBLE_RETURN_IF_ERROR(
        check(driver_.reserve(&allocation.address, bytes_, 0, 0, 0), "cuMemAddressReserve", device));
    NIBBLE_RETURN_IF_ERROR(
        check(driver_.map(allocation.address, bytes_, 0, allocation.handle, 0), "cuMemMap", device));
    allocation.mapped = true;
    std::vector<CUmemAccessDesc> access;
    for (const int user : devices.here) {
      access.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = user},
                        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    NIBBLE_RETURN_IF_ERROR(check(driver_.set_access(allocation.address, bytes_, access.data(), access.size()),
                                 "cuMemSetAccess", device));
    windows_[static_cast<std::size_t>(rank)] = reinterpret_cast<std::byte*>(allocation.address);
    return {};
  }

  // By which other processes find this one's memory. The memory lives as long as anybody has it mapped.
  Result<std::vector<Descriptor>> files_of(std::span<const CUmemGenericAllocationHandle> made,
                                           const PeerDevices& devices) {
    std::vector<Descriptor> files;
    for (std::size_t i = 0; i < made.size(); ++i) {
      int file = -1;
      NIBBLE_RETURN_IF_ERROR(
          check(driver_.export_handle(&file, made[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "cuMemExportToShareableHandle", devices.here[i]));
      files.emplace_back(file);
    }
    return Result<std::vector<Descriptor>>(std::move(files));
  }

  Status take_others(std::span<const Descriptor> own, const PeerDevices& devices) {
    std::vector<int> files;
    for (const Descriptor& each : own) files.push_back(each.get());
    NIBBLE_ASSIGN(const auto others, devices.others->exchange(bytes_, files));
    for (int rank = 0; rank < devices.ranks(); ++rank) {
      if (devices.has(rank)) continue;
      const auto place = static_cast<std::size_t>(rank), each = devices.here.size();
      const Descriptor& file = others[place / each][place % each];
      CUmemGenericAllocationHandle handle = 0;
      NIBBLE_RETURN_IF_ERROR(check(
          driver_.import_handle(&handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(file.get())),
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle", devices.here.front()));
      Allocation& allocation = allocations_.emplace_back(Allocation{.handle = handle});
      NIBBLE_RETURN_IF_ERROR(map_at(allocation, rank, devices));
    }
    return {};
  }

  Driver driver_;
  std::vector<Allocation> allocations_;
};

// Contexts exist once something is asked of the runtime; the driver's functions need one.
void wake(std::span<const int> devices) {
  int current = 0;
  cuda_check(cudaGetDevice(&current));
  for (const int device : devices) {
    cuda_check(cudaSetDevice(device));
    cuda_check(cudaFree(nullptr));
  }
  cuda_check(cudaSetDevice(current));
}

}  // namespace

Result<std::unique_ptr<PeerMemory>> map_peer_memory(const PeerDevices& devices, std::size_t bytes) {
  for (const int from : devices.here) {
    for (const int to : devices.here) {
      int can = 1;
      if (from != to) cuda_check(cudaDeviceCanAccessPeer(&can, from, to));
      if (can != 0) continue;
      return invalid_argument("GPU " + std::to_string(from) + " cannot write the memory of GPU " +
                              std::to_string(to) + "; choose GPUs with peer access (nvidia-smi topo -p2p w)");
    }
  }
  wake(devices.here);
  auto windows = std::make_unique<MappedWindows>();
  NIBBLE_RETURN_IF_ERROR(windows->map(devices, bytes));
  return Result<std::unique_ptr<PeerMemory>>(std::move(windows));
}

}  // namespace nibble
