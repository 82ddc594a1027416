#!/usr/bin/env bash
# tools/device_profile.sh PROGRAMS OUT [SECONDS]: what a machine with a GPU can say about the device code beyond make
# device-test, because such machines are dear: compute-sanitizer on the tests' small cases, and Nsight Compute's counters
# and stalls by instruction for one launch of each kernel that a step's time is made of. PROGRAMS is build/cuda/src/ops or
# build/bundle. No part begins after SECONDS (240). Clocks are left as they are.
set -uo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,6s/^# //p' "$0"
  exit 2
fi
programs=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
deadline=$((SECONDS + ${3:-240}))

# in_time LIMIT COMMAND...: within the limit and what is left; 124 if there was nothing left.
in_time() {
  local limit=$1 left=$((deadline - SECONDS))
  shift
  [ "$left" -gt 5 ] || return 124
  timeout "$((limit < left ? limit : left))" "$@"
}

# profile NAME KERNEL LAUNCH PROGRAM ARGUMENTS...: the launch of that number, when weights are in no cache and clocks up.
profile() {
  local name=$1 kernel=$2 launch=$3 program=$4 report="$out/$1"
  shift 4
  in_time 60 ncu --clock-control none --set full --import-source no -k "regex:$kernel" --launch-skip "$launch" \
    --launch-count 1 -f -o "$report" "$programs/$program" "$@" >"$report.log" 2>&1
  if [ ! -s "$report.ncu-rep" ]; then
    echo "$name: no report; see $name.log"
    return
  fi
  ncu -i "$report.ncu-rep" --page details >"$report.txt" 2>&1
  ncu -i "$report.ncu-rep" --page source --csv >"$report.csv" 2>&1
  echo "$name:"
  grep -E 'Duration|DRAM Throughput|L2 Cache Throughput|Executed Ipc Active|Issued Instructions|L1/TEX Hit|L2 Hit|Registers Per|Local Spill|Achieved Occ' \
    "$report.txt" | sort -u
}

profile moe_decode_1 moe_decode 20 moe_cuda_bench --experts 32 --tokens 1
profile moe_decode_8 moe_decode 20 moe_cuda_bench --experts 32 --tokens 8
profile moe_many_2048 moe_many 20 moe_cuda_bench --experts 32 --tokens 2048
profile linear_few_1 linear_few 20 linear_cuda_bench --tokens 1
profile linear_many_2048 linear_many 20 linear_cuda_bench --tokens 2048
profile attention_few_8k attention_few 20 attention_cuda_bench --batch 1 --positions 8192
profile attention_few_32x8k attention_few 10 attention_cuda_bench --batch 32 --positions 8192
profile attention_many_8k attention_many 2 attention_cuda_bench --batch 1 --positions 8192

# Without the test that lets a process die, which does not end under a sanitizer.
for tool in memcheck racecheck synccheck; do
  NIBBLE_SMALL_CASES=1 in_time 90 compute-sanitizer --tool "$tool" "$programs/device_test" \
    --gtest_filter=-Device.AnIllegalAddressEndsTheProcess >"$out/$tool.txt" 2>&1
  echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.txt" || echo "no summary; see $tool.txt")"
done
