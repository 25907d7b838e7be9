# Sourced by the scripts here that run ranks as their children. They define: tool, their name; pids,
# of the ranks; grace_s, how long ranks may go on after one has failed; kill_ranks SIGNAL; and file
# descriptor 4, where people read.

# Waits for all ranks and leaves their largest status in `worst`. Those killed here do not count:
# they are not what went wrong.
wait_for_ranks() {
  local running=("${pids[@]}") still pid status killed=no kill_at=
  worst=0
  while [ "${#running[@]}" -gt 0 ]; do
    still=()
    for pid in "${running[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then
        still+=("$pid")
        continue
      fi
      wait "$pid"
      status=$?
      if [ "$killed" = no ] && [ "$status" -gt "$worst" ]; then
        worst=$status
      fi
    done
    running=(${still[@]+"${still[@]}"})
    if [ "$worst" -ne 0 ] && [ "${#running[@]}" -gt 0 ]; then
      kill_at=${kill_at:-$((SECONDS + grace_s))}
      if [ "$killed" = no ] && [ "$SECONDS" -ge "$kill_at" ]; then
        echo "$tool: a rank failed; killing ${#running[@]} still running" >&4
        killed=yes
        kill_ranks KILL
      fi
    fi
    sleep 0.1
  done
  pids=()
}
