#!/usr/bin/env bash
# tools/format.sh: formats the C++ and CUDA sources in place. --check only lists the files that would change
# and exits 1; exit 77 means that clang-format 14, the version whose output the tree has, is not here.
set -euo pipefail
cd "$(dirname "$0")/.."

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$formatter" ] || ! "$formatter" --version | grep -q 'version 14\.'; then
  echo "clang-format 14 is not installed"
  exit 77
fi

mapfile -t files < <(git ls-files --cached --others --exclude-standard -- 'src/**' 'app/**' |
  grep -E '\.(h|cpp|cu|cuh)$' | while read -r file; do [ ! -e "$file" ] || echo "$file"; done)
if [ "${1:-}" = --check ]; then
  bad=$("$formatter" --dry-run "${files[@]}" 2>&1 | sed -n 's/:[0-9]*:[0-9]*: warning: .*/ is not formatted/p' | sort -u)
  [ -z "$bad" ] || { echo "$bad"; exit 1; }
  exit 0
fi
"$formatter" -i "${files[@]}"
