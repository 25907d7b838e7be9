#!/usr/bin/env bash
# Tests and benches on a machine with one GPU, in one call: prints short tables, writes JSON lines and
# logs to OUT.
#
#   OUT=DIR TRACES="a.npz b.npz" bench/gpu_session.sh BUILD [part...]
#
# BUILD: a build with CIERA_CUDA=ON and CIERA_TESTS=ON (CIERA_MPI=ON for ciera_perf). Parts: tests,
# sanitize, codec, delta, nccl, perf; without any, all of them. REUSE: the mode of perf.
set -u
build=$1
shift
parts=${*:-tests sanitize codec delta nccl perf}
out=${OUT:?}
traces=${TRACES:-}
status=0

wants() { [[ " $parts " == *" $1 "* ]]; }
note() { printf '\n== %s\n' "$*"; }

if [ -z "${CIERA_NCCL_LIBRARY:-}" ]; then
  CIERA_NCCL_LIBRARY=$(python3 -c 'import nvidia.nccl, pathlib
print(pathlib.Path(list(nvidia.nccl.__path__)[0]) / "lib/libnccl.so.2")' 2>/dev/null)
  export CIERA_NCCL_LIBRARY
fi
if [ -z "${CIERA_NVCOMP_LIBRARY:-}" ]; then
  CIERA_NVCOMP_LIBRARY=$(python3 -c 'import nvidia.libnvcomp, pathlib
print(pathlib.Path(list(nvidia.libnvcomp.__path__)[0]) / "lib64/libnvcomp.so.6")' 2>/dev/null)
  export CIERA_NVCOMP_LIBRARY
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine.txt"

if wants tests; then
  note "GPU tests"
  for test in cuda_test delta_decode_test nvcomp_test; do
    timeout 200 "$build/tests/native/cuda/$test" >"$out/$test.log" 2>&1 || status=1
    grep -E "^\[  (PASSED|FAILED|SKIPPED)|Failure" "$out/$test.log" | sort | uniq -c | head -30
  done
fi
if wants sanitize; then
  for tool in memcheck racecheck; do
    note "compute-sanitizer $tool on the codec contract"
    timeout 280 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/native/cuda/cuda_test" \
      --gtest_filter='*FramesOfEveryBlockAndSegment*:*Distribution*:*OneRefused*:*MovesAndJudges*:*InPlace*:-*Delta*' \
      >"$out/$tool.log" 2>&1 || status=1
    grep -E "ERROR SUMMARY|RACECHECK SUMMARY|PASSED|FAILED|Error" "$out/$tool.log" | head -5
  done
fi
if wants codec; then
  note "codec bench"
  for source in gaussian $traces; do
    label=$(basename "$source" .npz)
    label=${label#trace_}
    python3 bench/gpu_codec_bench.py "$source" "$out/steps.bin" &&
      "$build/bench/gpu_codec_bench" "$out/steps.bin" "${label%_dev}" "$out/codec.jsonl" "${MAX_BYTES:-1073741824}" ||
      status=1
  done
  rm -f "$out/steps.bin"
fi
if wants delta; then
  note "codec bench of the delta modes"
  for source in $traces; do
    label=$(basename "$source" .npz)
    label=${label#trace_}
    python3 bench/gpu_codec_bench.py "$source" "$out/steps.bin" &&
      "$build/bench/gpu_delta_bench" "$out/steps.bin" "${label%_dev}" "$out/delta.jsonl" "${MAX_BYTES:-1073741824}" ||
      status=1
  done
  rm -f "$out/steps.bin"
fi
if wants nccl; then
  note "NCCL transport, 3 ranks on one GPU"
  rm -f "$out/nccl_id"
  bench/one_gpu.sh 3 "$build/tests/native/cuda/nccl_check" "$out/nccl_id" 2>&1 | tail -12
  [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
  rm -f "$out/nccl_id"
fi
if wants perf; then
  for ranks in ${RANKS:-2 4}; do
    for trace in $traces; do
      note "ciera_perf, $ranks ranks on one GPU over NCCL, $(basename "$trace")"
      # one_gpu.sh starts MPS; mpirun starts the ranks, which tell NCCL that they are hosts.
      timeout "${PERF_LIMIT_S:-200}" bench/one_gpu.sh 1 mpirun --allow-run-as-root --oversubscribe \
        --bind-to none -n "$ranks" "${PERF:-$build/bench/ciera_perf/ciera_perf}" --backend cuda --one-gpu \
        -b "${FROM:-1M}" -e "${TO:-256M}" -f "${FACTOR:-4}" -n "${ITERS:-8}" -w 2 -c 1 -d bfloat16 \
        --reuse "${REUSE:-exponent-block}" --trace "$trace" \
        --json "$out/perf_${REUSE:-exponent-block}_${ranks}_$(basename "$trace" .npz).jsonl" >"$out/perf.log" 2>&1 || status=1
      tail -25 "$out/perf.log"
    done
  done
fi
note "status $status"
exit "$status"
