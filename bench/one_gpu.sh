#!/usr/bin/env bash
# Runs a command as N ranks that share one GPU and reach each other through real NCCL.
#
#   bench/one_gpu.sh N command [argument...]
#
# NCCL refuses two ranks on one GPU only when they share a host, so each rank gets a host id of its
# own and NCCL takes its socket transport over the loopback interface. CUDA MPS lets the ranks use
# the GPU side by side; without it they take turns. Ranks learn their place from RANK, WORLD_SIZE,
# LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Output of ranks above 0 is prefixed. Exit status: the
# largest of the ranks' own. After a first failure the others get ONE_GPU_GRACE_S seconds (20), then
# they are killed.
set -u

tool=one_gpu
# shellcheck source=bench/wait_for_ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/wait_for_ranks.sh"

if [ "$#" -lt 2 ] || ! [ "$1" -gt 0 ] 2>/dev/null; then
  echo "usage: $0 N command [argument...]" >&2
  exit 2
fi
ranks=$1
shift
grace_s=${ONE_GPU_GRACE_S:-20}
work=$(mktemp -d) || exit 1
mps_runs=no
pids=()

start_mps() {
  export CUDA_MPS_PIPE_DIRECTORY="$work/pipe" CUDA_MPS_LOG_DIRECTORY="$work/log"
  mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  if nvidia-cuda-mps-control -d >"$work/mps" 2>&1; then
    mps_runs=yes
  else
    echo "one_gpu: CUDA MPS did not start, ranks take turns:" \
      "$(sed '1s|^.*: line [0-9]*: ||;1q' "$work/mps")" >&2
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
}

# Each rank leads a process group (set -m below), so that its helpers go with it.
kill_ranks() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do
    kill -"$1" -- "-$pid" 2>/dev/null
  done
}

finish() {
  trap - EXIT INT TERM
  kill_ranks KILL
  if [ "$mps_runs" = yes ]; then
    echo "quit -t 5" | nvidia-cuda-mps-control >/dev/null 2>&1
  fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000)) # below the ports that Linux gives to clients
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
}

# stdout and stderr of a rank above 0 stay apart, each behind the prefix.
prefixed() {
  local prefix=$1
  shift
  set -o pipefail
  { { "$@" 2>&1 1>&3 3>&- | sed -u "s/^/$prefix/" >&2; } 3>&1 | sed -u "s/^/$prefix/"; }
}

run_rank() {
  local rank=$1
  shift
  export RANK="$rank" NCCL_HOSTID="one-gpu-$$-$rank"
  if [ "$rank" -eq 0 ]; then
    "$@"
  else
    prefixed "[rank $rank] " "$@"
  fi
}

start_mps
export WORLD_SIZE="$ranks" LOCAL_RANK=0 MASTER_ADDR=127.0.0.1
MASTER_PORT=$(free_port)
export MASTER_PORT
export NCCL_SOCKET_IFNAME=lo NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4 NCCL_NVLS_ENABLE=0
set -m
for ((rank = 0; rank < ranks; rank++)); do
  run_rank "$rank" "$@" </dev/null &
  pids+=("$!")
done
wait_for_ranks 4>&2 2>/dev/null # without the shell's own notices about killed jobs
exit "$worst"
