#!/usr/bin/env bash
# tools/device_profile.sh PROGRAMS OUT: what a machine with a GPU can say about the device code beyond make device-test, in
# one go of about a minute, because such machines are dear: compute-sanitizer on the small tests, and Nsight
# Compute's counters and stalls by instruction for the expert layer at 1 and 8 tokens. PROGRAMS is
# build/cuda/src/ops or build/bundle. Clocks are left as they are.
set -uo pipefail
if [ $# -ne 2 ]; then
  sed -n '2,5s/^# //p' "$0"
  exit 2
fi
programs=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)

small='*LeavesOut*:*NotANumber*:*Extremes*:RouteTopK*'
for tool in memcheck racecheck synccheck; do
  timeout 60 compute-sanitizer --tool "$tool" "$programs/device_test" --gtest_filter="$small" >"$out/$tool.txt" 2>&1
  echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.txt" || echo "no summary; see $tool.txt")"
done

for tokens in 1 8; do
  report="$out/decode_$tokens"
  # The 21st launch: weights and tables are warm in no cache, the clocks are up.
  timeout 60 ncu --clock-control none --set full -k regex:moe_decode --launch-skip 20 --launch-count 1 -f -o "$report" \
    "$programs/moe_cuda_bench" --experts 32 --tokens "$tokens" >"$report.log" 2>&1
  ncu -i "$report.ncu-rep" --page details >"$report.txt" 2>&1
  ncu -i "$report.ncu-rep" --page source --csv >"$report.csv" 2>&1
  echo "$tokens tokens:"
  grep -E 'Duration|DRAM Throughput|Executed Ipc Active|Issued Instructions|L1/TEX Hit|Registers Per|Local Spill' "$report.txt" | sort -u
done
