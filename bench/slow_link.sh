#!/usr/bin/env bash
# CIERA against a plain all-gather over gloo, between ranks whose links are shaped to a rate.
#
#   bench/slow_link.sh [--ranks 2,4] [--rates 1,2.5,10] [worker flag...] TRACE.npz [TRACE.npz...]
#
# Each rank lives in a network namespace of its own, joined by a veth pair to a bridge, which lives
# in a namespace too: nothing appears among the host's interfaces. Both ends of each pair send
# through `tc tbf` at the rate (Gbit/s, both ways at once). Worker flags: see bench/slow_link.py
# --help; --json FILE appends JSON lines, OUT=DIR does so to DIR/slow_link.jsonl. PYTHON is the
# interpreter that has torch and ciera (python3). GLOO_SOCKET_IFNAME names the interface inside the
# namespaces (link0). All ranks share this machine's cores. Needs root.
#
# Whatever ends this script, signals included, ends the ranks and removes the namespaces. After a
# SIGKILL: ip netns list | grep -o '^ciera-link-[^ ]*' | xargs -n 1 ip netns del
#
# Exit status: 0; 1 when a word was wrong or a run failed; 2 for a wrong command line or something
# missing; 128 + the signal.
set -u

tool=slow_link
# shellcheck source=bench/wait_for_ranks.sh
source "$(dirname "${BASH_SOURCE[0]}")/wait_for_ranks.sh"

ranks_list=2,4
rates=1,2.5,10
worker=$(dirname "$0")/slow_link.py
python=${PYTHON:-python3}
interface=${GLOO_SOCKET_IFNAME:-link0}
run_name=ciera-link-$$-$RANDOM
grace_s=10
namespaces=()
pids=()
flags=()

refuse() {
  echo "slow_link: $*" >&2
  exit 2
}

parse() {
  while [ "$#" -gt 0 ]; do
    case $1 in
      --ranks | --rates)
        [ "$#" -ge 2 ] || refuse "$1 needs a list, such as --ranks 2,4 --rates 1,2.5,10"
        [ "$1" = --ranks ] && ranks_list=$2 || rates=$2
        shift 2
        ;;
      -h | --help)
        sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"
        exec "$python" "$worker" --help
        ;;
      *)
        flags+=("$1")
        shift
        ;;
    esac
  done
  [ "${#flags[@]}" -gt 0 ] || refuse "give a trace: $0 [--ranks 2,4] [--rates 1,2.5,10] TRACE.npz"
  [[ $ranks_list =~ ^[0-9]+(,[0-9]+)*$ ]] || refuse "--ranks $ranks_list: give numbers, as in 2,4"
  [[ $rates =~ ^[0-9.]+(,[0-9.]+)*$ ]] || refuse "--rates $rates: give Gbit/s, as in 1,2.5,10"
  [[ $interface =~ ^[A-Za-z0-9_.-]{1,15}$ ]] ||
    refuse "GLOO_SOCKET_IFNAME=$interface: give the name of one interface, 15 characters at most"
  local one
  for one in ${ranks_list//,/ }; do
    { [ "$one" -ge 2 ] && [ "$one" -le 200 ]; } || refuse "--ranks $one: give 2 to 200"
  done
  for one in ${rates//,/ }; do
    awk -v r="$one" 'BEGIN { exit !(r ~ /^[0-9]*\.?[0-9]+$/ && r >= 0.01 && r <= 100) }' ||
      refuse "--rates $one: give 0.01 to 100 Gbit/s"
  done
}

check_tools() {
  local tool said
  for tool in ip tc setpriv awk; do
    command -v "$tool" >/dev/null ||
      refuse "there is no $tool; on Debian: apt-get install iproute2 util-linux mawk"
  done
  [ "$(id -u)" = 0 ] || refuse "network namespaces need root; run it with sudo"
  # Once, before each rank would complain.
  if ! said=$("$python" "$worker" "${flags[@]}" --check 2>&1); then
    case $said in
      *ModuleNotFoundError* | *ImportError* | *"not found"*)
        refuse "$python cannot run the ranks (${said##*$'\n'}); install torch and ciera there, or" \
          "set PYTHON to the interpreter that has them"
        ;;
    esac
    echo "$said" >&2
    exit 2
  fi
}

# Each rank leads a process group (set -m below), so that its helpers go with it. Not from `pids`:
# an interruption may come before a rank is in it.
kill_ranks() {
  local pid
  for pid in $(jobs -p); do
    kill -"$1" -- "-$pid" 2>/dev/null
  done
}

remove_network() {
  local name
  for name in ${namespaces[@]+"${namespaces[@]}"}; do
    ip netns del "$name" 2>/dev/null
  done
  namespaces=()
}

finish() {
  trap - EXIT
  trap '' INT TERM HUP PIPE
  kill_ranks KILL
  wait 2>/dev/null # a namespace lives as long as a process in it
  remove_network
}

# Runs a command of the set-up; what it says is the reason why there is no run.
do_or_stop() {
  local said
  if ! said=$("$@" 2>&1); then
    echo "slow_link: the network could not be set up: $*: ${said:-failed}" >&2
    exit 1
  fi
}

# Recorded before it is made: an interruption in between must not leave it behind.
add_namespace() {
  namespaces+=("$1")
  do_or_stop ip netns add "$1"
}

# Packets stay below the bucket, so that `tbf` need not cut them up.
make_network() {
  local ranks=$1 rank name
  switch=$run_name-switch
  add_namespace "$switch"
  do_or_stop ip -n "$switch" link add bridge0 type bridge
  do_or_stop ip -n "$switch" link set bridge0 up
  for ((rank = 0; rank < ranks; rank++)); do
    name=$run_name-$rank
    add_namespace "$name"
    do_or_stop ip -n "$switch" link add "port$rank" type veth peer name "$interface" netns "$name"
    do_or_stop ip -n "$switch" link set "port$rank" master bridge0 up
    do_or_stop ip -n "$name" address add "10.77.0.$((rank + 1))/24" dev "$interface"
    do_or_stop ip -n "$name" link set lo up
    do_or_stop ip -n "$name" link set "$interface" up
  done
}

# The bucket holds a quarter of a millisecond of the rate: what a burst may send too early. Up to
# 20 ms wait in the queue.
shape_network() {
  local ranks=$1 rate=$2 rank bits burst limit packet
  read -r bits burst limit packet < <(awk -v r="$rate" 'BEGIN {
    bits = r * 1e9; burst = bits / 8 * 0.25e-3; if (burst < 16384) burst = 16384
    packet = burst / 2; if (packet > 65536) packet = 65536
    printf "%.0f %.0f %.0f %.0f\n", bits, burst, burst + bits / 8 * 20e-3, packet }')
  local shape=(root tbf rate "${bits}bit" burst "$burst" limit "$limit")
  for ((rank = 0; rank < ranks; rank++)); do
    do_or_stop ip -n "$run_name-$rank" link set "$interface" gso_max_size "$packet"
    do_or_stop ip -n "$switch" link set "port$rank" gso_max_size "$packet"
    do_or_stop tc -n "$run_name-$rank" qdisc replace dev "$interface" "${shape[@]}"
    do_or_stop tc -n "$switch" qdisc replace dev "port$rank" "${shape[@]}"
  done
}

# The ranks of one rate; setpriv ends them should this script be killed.
run_ranks() {
  local ranks=$1 rate=$2 rank
  export WORLD_SIZE="$ranks" LOCAL_WORLD_SIZE="$ranks" MASTER_ADDR=10.77.0.1 MASTER_PORT=29577
  # Nothing in a namespace knows host names; torch warns of it at each connection.
  export GLOO_SOCKET_IFNAME="$interface" TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-ERROR}"
  for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank ip netns exec "$run_name-$rank" setpriv --pdeathsig KILL \
      "$python" "$worker" "${flags[@]}" --link-gbit "$rate" </dev/null &
    pids+=("$!")
  done
  wait_for_ranks 4>&2 2>/dev/null # without the shell's own notices about killed jobs
  [ "$worst" -eq 0 ] || exit "$([ "$worst" -eq 2 ] && echo 2 || echo 1)"
}

parse "$@"
check_tools
if [ -n "${OUT:-}" ]; then
  flags+=(--json "$OUT/slow_link.jsonl")
fi
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 141' PIPE
trap 'exit 143' TERM
set -m
for ranks in ${ranks_list//,/ }; do
  make_network "$ranks"
  for rate in ${rates//,/ }; do
    shape_network "$ranks" "$rate"
    run_ranks "$ranks" "$rate"
  done
  remove_network
done
