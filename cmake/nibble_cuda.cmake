# The device code. With NIBBLE_CUDA (cmake --preset cuda) the CUDA toolkit must be there and the targets for the GPU
# exist: the kernels, device_test and the device benchmarks (all by device_programs). Nothing else needs them, so without
# it everything builds and tests as on a machine that never saw a toolkit.
#
#   nibble_cuda_room(name DEPS ... SOURCES ... TESTS ... BENCHES ...)
# gives the library nibble_<name>_cuda, adds its tests to device_test, and makes a program of each benchmark. A room of
# tests alone has no sources.

find_package(CUDAToolkit QUIET)
if(NIBBLE_CUDA)
  if(NOT CUDAToolkit_FOUND)
    message(FATAL_ERROR "NIBBLE_CUDA is on, but the CUDA toolkit was not found; "
      "put nvcc on PATH or set CUDAToolkit_ROOT")
  endif()
  # wgmma and setmaxnreg exist for this exact chip only.
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  # What CMake 3.25 does not know of this compiler.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  # As on the CPU: floating point means what the source says, without contraction; and what is constexpr may be called.
  target_compile_options(nibble_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr>)
  # 554 doubts a conversion that a requires-clause already rules out; 780 is about a rule of old compilers.
  target_compile_options(nibble_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-diag-suppress=554,780;-Xcompiler=-fno-math-errno>)
  # Kernels that differ in a parameter are much alike: a program has an eighth of their bytes.
  if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
    target_compile_options(nibble_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  endif()
  if(NIBBLE_WERROR)
    target_compile_options(nibble_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  message(STATUS "CUDA toolkit ${CUDAToolkit_VERSION}: building for compute capability 9.0")

  # Which sources a program was built from; tools/device_record.py compares it with the tree's.
  set(NIBBLE_DEVICE_SOURCES ${CMAKE_BINARY_DIR}/generated/device_sources)
  add_custom_target(device_sources
    COMMAND ${CMAKE_COMMAND} -E env python3 ${CMAKE_SOURCE_DIR}/tools/device_record.py header
      ${NIBBLE_DEVICE_SOURCES}/ops/cuda/device_sources.h
    BYPRODUCTS ${NIBBLE_DEVICE_SOURCES}/ops/cuda/device_sources.h
    VERBATIM)
  add_custom_target(device_programs)
elseif(CUDAToolkit_FOUND)
  message(STATUS "CUDA toolkit ${CUDAToolkit_VERSION}: found; cmake --preset cuda builds the device code")
else()
  message(STATUS "CUDA toolkit: not found; not needed")
endif()

function(nibble_cuda_room name)
  if(NOT NIBBLE_CUDA)
    return()
  endif()
  cmake_parse_arguments(ROOM "" "" "DEPS;SOURCES;TESTS;BENCHES" ${ARGN})
  if(ROOM_SOURCES)
    add_library(nibble_${name}_cuda STATIC ${ROOM_SOURCES})
    target_link_libraries(nibble_${name}_cuda PUBLIC nibble_flags ${ROOM_DEPS} CUDA::cudart_static)
  else()
    add_library(nibble_${name}_cuda INTERFACE)
    target_link_libraries(nibble_${name}_cuda INTERFACE nibble_flags ${ROOM_DEPS} CUDA::cudart_static)
  endif()
  if(NIBBLE_TESTS AND ROOM_TESTS)
    if(NOT TARGET device_test)
      add_executable(device_test)
      add_dependencies(device_test device_sources)
      target_include_directories(device_test PRIVATE ${NIBBLE_DEVICE_SOURCES})
      # It runs in the repository's root, wherever that is on the machine with a GPU.
      target_compile_definitions(device_test PRIVATE NIBBLE_SOURCE_DIR=".")
      target_link_libraries(device_test PRIVATE GTest::gtest_main)
      add_dependencies(device_programs device_test)
    endif()
    list(TRANSFORM ROOM_TESTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    target_sources(device_test PRIVATE ${ROOM_TESTS})
    target_link_libraries(device_test PRIVATE nibble_${name}_cuda)
  endif()
  foreach(bench IN LISTS ROOM_BENCHES)
    cmake_path(GET bench STEM program)
    add_executable(${program} ${bench})
    target_link_libraries(${program} PRIVATE nibble_${name}_cuda)
    add_dependencies(device_programs ${program})
  endforeach()
endfunction()
