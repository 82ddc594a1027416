#!/usr/bin/env bash
# tools/tidy.sh [FILE...]: clang-tidy with the checks of .clang-tidy over the sources (all by default).
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset clang >/dev/null
if [ $# = 0 ]; then
  mapfile -t files < <(git ls-files -- 'src/**.cpp' 'app/**.cpp')
else
  files=("$@")
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/clang
