# What `nibble --version` prints, written to version.h. Configuring again after each commit keeps it true.
set(NIBBLE_COMMIT "unknown")
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=12 HEAD WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_commit)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --git-path logs/HEAD WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE head_log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT no_commit)
    set(NIBBLE_COMMIT ${commit})
    cmake_path(ABSOLUTE_PATH head_log BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
    if(EXISTS ${head_log})
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${head_log})
    endif()
  endif()
endif()
# What the device code is compiled for (nibble_cuda.cmake): 90a-real is sm_90a.
set(NIBBLE_GPU_TARGETS "none")
if(NIBBLE_CUDA)
  string(REGEX REPLACE "([0-9]+[a-z]?)(-real|-virtual)?" "sm_\\1" NIBBLE_GPU_TARGETS "${CMAKE_CUDA_ARCHITECTURES}")
  string(REPLACE ";" ", " NIBBLE_GPU_TARGETS "${NIBBLE_GPU_TARGETS}")
endif()
set(NIBBLE_VERSION_INCLUDE ${CMAKE_BINARY_DIR}/generated)
configure_file(${CMAKE_SOURCE_DIR}/app/version.h.in ${NIBBLE_VERSION_INCLUDE}/app/version.h)
