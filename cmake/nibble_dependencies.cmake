# Everything comes from the distribution's packages (tools/packages.txt). What Debian ships as a static
# library or as headers is linked in, so the program needs nothing but glibc where it runs.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)

function(nibble_static_library target archive header)
  find_library(${target}_ARCHIVE ${archive} REQUIRED)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_link_libraries(${target} INTERFACE ${${target}_ARCHIVE})
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE})
endfunction()
nibble_static_library(pcre2_static libpcre2-8.a pcre2.h)
nibble_static_library(utf8proc_static libutf8proc.a utf8proc.h)
nibble_static_library(openssl_static libssl.a openssl/ssl.h)
find_library(crypto_ARCHIVE libcrypto.a REQUIRED)
# From OpenSSL 3.2 on Debian's libcrypto compresses certificates with these; an older one does not ask for them.
find_library(z_ARCHIVE libz.a REQUIRED)
find_library(zstd_ARCHIVE libzstd.a REQUIRED)
target_link_libraries(openssl_static INTERFACE ${crypto_ARCHIVE} ${z_ARCHIVE} ${zstd_ARCHIVE} Threads::Threads)

if(NIBBLE_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  find_package(simdjson REQUIRED)   # the oracle of our JSON reader and writer; tests only
endif()
if(NIBBLE_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
