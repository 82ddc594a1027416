#!/usr/bin/env bash
# tools/bundle.sh: build/bundle with the stripped program, the tests of all rooms in one stripped program (they share
# what each alone would carry), those on the emulated GPU in another, and the one shared library they need beyond glibc.
# The folder can be copied to a machine without compiler or packages; tests that read files want the source tree at the
# path where it was built. For a machine with a GPU there is tools/device_bundle.sh. Fails if the folder is over 60 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset release -DNIBBLE_TESTS=ON >/dev/null
programs=(nibble every_test gpu_emulation_test gpu_emulation_worker_test)
cmake --build build/release --target "${programs[@]}" -- --quiet  # but for errors

rm -rf build/bundle
mkdir -p build/bundle
for program in "${programs[@]}"; do
  strip -o "build/bundle/$program" "$(find build/release -name "$program" -type f -executable | head -n 1)"
done
for library in $(ldd build/bundle/* 2>/dev/null | awk '/=> \/.*(simdjson)/ { print $3 }' | sort -u); do
  strip -o "build/bundle/$(basename "$library")" "$(readlink -f "$library")"
done

size=$(du -sk build/bundle | cut -f1)
echo "build/bundle: $(find build/bundle -type f | wc -l) files, $((size / 1024)) MiB"
if [ "$size" -gt $((60 * 1024)) ]; then
  echo "over the 60 MiB that a bundle may take" >&2
  exit 1
fi
