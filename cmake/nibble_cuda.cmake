# Where the CUDA toolkit is, its version is reported; with NIBBLE_CUDA (cmake --preset cuda) it must be there.
# No room has CUDA sources yet, so nothing is built with it and the program says so in --version.

find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
  message(STATUS "CUDA toolkit ${CUDAToolkit_VERSION}: found; no room has CUDA sources")
elseif(NIBBLE_CUDA)
  message(FATAL_ERROR "NIBBLE_CUDA is on, but the CUDA toolkit was not found; "
    "put nvcc on PATH or set CUDAToolkit_ROOT")
else()
  message(STATUS "CUDA toolkit: not found; not needed")
endif()
