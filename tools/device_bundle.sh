#!/usr/bin/env bash
# tools/device_bundle.sh: build/device_bundle with what tools/device_call.sh runs: the stripped program with device code,
# device test and benchmarks, which need a driver alone, built from this tree. Fails if the folder is over 60 MiB.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset cuda -DNIBBLE_TESTS=ON >/dev/null
cmake --build build/cuda --target device_programs nibble -- --quiet  # but for errors
rm -rf build/device_bundle
mkdir -p build/device_bundle
for program in build/cuda/src/ops/device_test build/cuda/src/ops/*_cuda_bench build/cuda/nibble; do
  strip -o "build/device_bundle/$(basename "$program")" "$program"
done
git describe --always --dirty --exclude="*" >build/device_bundle/COMMIT
# Each must start here, and say that there is no GPU where there is none.
build/device_bundle/device_test --gtest_list_tests >/dev/null
for program in build/device_bundle/*_cuda_bench; do
  code=0
  "$program" --tokens 1 --experts 4 --batch 1 --positions 64 >/dev/null 2>&1 || code=$?
  if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then
    echo "$program does not start: exit code $code" >&2
    exit 1
  fi
done
size=$(du -sk build/device_bundle | cut -f1)
echo "build/device_bundle: $(find build/device_bundle -type f | wc -l) files, $((size / 1024)) MiB"
if [ "$size" -gt $((60 * 1024)) ]; then
  echo "over the 60 MiB that it may take" >&2
  exit 1
fi
