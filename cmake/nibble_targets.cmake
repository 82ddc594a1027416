# How a room becomes targets: nibble_room(name DEPS ... SOURCES ... TESTS ... BENCHES ...)
# gives the library nibble_<name>, the test program <name>_test and the benchmark <name>_bench.
# nibble_fuzzer(name DEPS ... SOURCES ... CORPUS folder...) gives a libFuzzer program of clang's, which
# tools/run_tests.py runs from these committed inputs; it stops there for a failure, like a test.

add_library(nibble_flags INTERFACE)
target_include_directories(nibble_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# Floating point means what the source says: no contraction, no reassociation, so that bits do not
# depend on the compiler's mood or the instruction set it was allowed to use.
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-Wshadow;-Wnon-virtual-dtor;-Wimplicit-fallthrough;-ffp-contract=off;-fno-math-errno>
  # g++ 12 sees overlapping copies in every `const char* + std::string&&` (its bug 105651). From what it inlines of
  # std::string and std::vector, g++ 12 to 14 conclude sizes that cannot occur. AddressSanitizer sees those that do.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
# Under a sanitizer g++ warns of what cannot happen (uninitialised members of a variant, for one).
if(NIBBLE_WERROR AND NOT NIBBLE_SANITIZE)
  target_compile_options(nibble_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(NOT NIBBLE_SANITIZE)
  # The program needs nothing but glibc where it runs, not even this compiler's runtime.
  target_link_options(nibble_flags INTERFACE -static-libstdc++ -static-libgcc)
else()
  target_compile_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE})
endif()
# g++ by itself collects garbage from 128 MiB on, a tenth of what a source costs that comes so far. None here takes more
# than 100 MiB more for being left alone up to half a gigabyte.
target_compile_options(nibble_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
if(NIBBLE_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "NIBBLE_FUZZERS needs clang++ (cmake --preset fuzz)")
  endif()
  target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# The standard library's headers are half of what a source costs to compile, GoogleTest's as much again. Both are
# precompiled once. Each source still says what it includes: one that does not is found by the clang build and those of
# other compilers, which have no precompiled headers.
#
# nibble_headers(name OPTIONS... LINKS...) precompiles cmake/<name>.h with these options; nibble_precompiled(target name)
# lets a target, which must be compiled with the same, begin with it.
function(nibble_headers name)
  cmake_parse_arguments(HEADERS "" "" "OPTIONS;LINKS" ${ARGN})
  if(NIBBLE_PRECOMPILED AND NOT TARGET nibble_${name})
    add_library(nibble_${name} OBJECT ${CMAKE_SOURCE_DIR}/cmake/no_source.cpp)
    target_link_libraries(nibble_${name} PRIVATE nibble_flags ${HEADERS_LINKS})
    target_compile_options(nibble_${name} PRIVATE ${HEADERS_OPTIONS})
    target_precompile_headers(nibble_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${CMAKE_SOURCE_DIR}/cmake/${name}.h>)
  endif()
endfunction()

function(nibble_precompiled target name)
  if(NIBBLE_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM nibble_${name})
    # A compiler's cache then sees which headers they were.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
  endif()
endfunction()

nibble_headers(library_headers)

# Tests are most of what is compiled and little of what runs, so they are optimised as little as helps, and under a
# sanitizer, where optimising costs more than half of the time, not at all.
function(nibble_cases cases)
  if(NIBBLE_SANITIZE)
    set(optimise -O0)
  else()
    set(optimise $<$<CONFIG:Release>:-Og>)
  endif()
  target_compile_options(${cases} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${optimise}>)
  nibble_headers(test_headers OPTIONS ${optimise} LINKS GTest::gtest)
  nibble_precompiled(${cases} test_headers)
endfunction()

# A program that measures is built when it is asked for; the target `benchmarks` is all of them.
function(nibble_benchmark program)
  set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
  if(NOT TARGET benchmarks)
    add_custom_target(benchmarks)
  endif()
  add_dependencies(benchmarks ${program})
endfunction()

function(nibble_room name)
  cmake_parse_arguments(ROOM "" "" "DEPS;SOURCES;TESTS;TEST_DEPS;BENCHES" ${ARGN})
  if(ROOM_SOURCES)
    add_library(nibble_${name} STATIC ${ROOM_SOURCES})
    target_link_libraries(nibble_${name} PUBLIC nibble_flags ${ROOM_DEPS})
    nibble_precompiled(nibble_${name} library_headers)
  else()
    add_library(nibble_${name} INTERFACE)
    target_link_libraries(nibble_${name} INTERFACE nibble_flags ${ROOM_DEPS})
  endif()
  if(NIBBLE_TESTS AND ROOM_TESTS)
    add_library(${name}_cases OBJECT ${ROOM_TESTS})
    target_link_libraries(${name}_cases PUBLIC nibble_${name} ${ROOM_TEST_DEPS} GTest::gtest)
    target_compile_definitions(${name}_cases PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    nibble_cases(${name}_cases)
    set_property(GLOBAL APPEND PROPERTY NIBBLE_CASES ${name}_cases ${ROOM_TEST_DEPS})
    add_executable(${name}_test)
    target_link_libraries(${name}_test PRIVATE ${name}_cases ${ROOM_TEST_DEPS} GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name}_test)
    set_tests_properties(${name} PROPERTIES LABELS fast)
  endif()
  if(NIBBLE_BENCHMARKS AND ROOM_BENCHES)
    add_executable(${name}_bench ${ROOM_BENCHES})
    target_link_libraries(${name}_bench PRIVATE nibble_${name} ${ROOM_TEST_DEPS} benchmark::benchmark)
    nibble_benchmark(${name}_bench)
  endif()
endfunction()

# every_test: the cases of all rooms in one program, for tools/bundle.sh; built when it is asked for.
function(nibble_every_test)
  if(NIBBLE_TESTS)
    get_property(cases GLOBAL PROPERTY NIBBLE_CASES)
    list(REMOVE_DUPLICATES cases)
    add_executable(every_test EXCLUDE_FROM_ALL)
    target_link_libraries(every_test PRIVATE ${cases} GTest::gtest_main)
    set_target_properties(every_test PROPERTIES BUILD_RPATH "$ORIGIN")
  endif()
endfunction()

function(nibble_fuzzer name)
  cmake_parse_arguments(FUZZER "" "" "DEPS;SOURCES;CORPUS" ${ARGN})
  if(NOT NIBBLE_FUZZERS)
    return()
  endif()
  add_executable(${name} ${FUZZER_SOURCES})
  target_link_libraries(${name} PRIVATE nibble_flags ${FUZZER_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  list(TRANSFORM FUZZER_CORPUS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/]")
  add_test(NAME ${name} COMMAND ${name} ${FUZZER_CORPUS})
  set_tests_properties(${name} PROPERTIES LABELS fuzz)
endfunction()

# Tests that hold work to a time: NIBBLE_SLOWDOWN is how many times as long it may take under a sanitizer, else 1.
function(nibble_timed_tests times)
  set(slowdown 1)
  if(NIBBLE_SANITIZE)
    set(slowdown ${times})
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_DEFINITIONS NIBBLE_SLOWDOWN=${slowdown})
endfunction()
