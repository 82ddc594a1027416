#!/usr/bin/env bash
# tools/device_call.sh PROGRAMS OUT [SECONDS]: everything a GPU is needed for, in one go of at most SECONDS (560): the tests
# and benchmarks with their record in docs/device, then counters and sanitizers (tools/device_profile.sh). PROGRAMS is
# build/cuda/src/ops or a folder that tools/device_bundle.sh made. OUT then has few files: the record, what was printed,
# and an archive of the rest. It needs a driver and Python, and changes nothing of the GPU's settings.
set -uo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,6s/^# //p' "$0"
  exit 2
fi
programs=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
begin=$SECONDS
cd "$(dirname "$0")/.."
work=$(mktemp -d)
touch "$work/begun"
trap 'rm -rf "$work"' EXIT

{
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,ecc.mode.current --format=csv
  # Not all of the time: the profile says why a figure is what it is.
  tools/device_record.py run "$programs" "$((${3:-560} * 6 / 10))"
  tools/device_profile.sh "$programs" "$work/profile" "$((${3:-560} - (SECONDS - begin) - 20))"
  echo "the call took $((SECONDS - begin)) s"
} 2>&1 | tee "$out/printed.txt"

newest=$(ls -t docs/device/*.json 2>/dev/null | head -1)
[ -n "$newest" ] && [ "$newest" -nt "$work/begun" ] && cp "$newest" "$out/"
mkdir -p "$work/profile"
tar -czf "$out/profile.tar.gz" -C "$work" profile
ls -l "$out"
