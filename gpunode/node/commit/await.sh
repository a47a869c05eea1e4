# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables of the program that this is a part of
# A program that nobody notifies: the kubelet starts a static pod again when its manifest has changed.  What counts is another
# process of that name, which answers and stays up.  Stands behind service.sh, before commit.sh.

# processes: the ids of the program's processes, in containers too
processes() { grep -sxlF "$process" /proc/[0-9]*/comm | sed 's|^/proc/||; s|/comm$||'; }

# note_processes: those that run before the first write
note_processes() { [ -z "$process" ] || processes >"$backup/processes"; }

# new_process: the first process that was not there before, which has forked the others; where the files were put back, any one
new_process() {
  processes >"$GPUNODE_IN/.processes"
  if [ -n "$restored" ]; then
    cat "$GPUNODE_IN/.processes"
  else
    awk 'FILENAME == ARGV[1] { old[$0]; next } !($0 in old)' "$backup/processes" "$GPUNODE_IN/.processes"
  fi | sort -n | head -n 1
}

# await: within $limit seconds such a process answers, and has then been there for more than $settle s; else $health_error.  The third one
# that ends decides as well.
await() {
  touch "$backup/notified"
  flush "$backup/notified"
  told_at=$(date +%s) told_up=$(uptime_now) new_pid='' ended=0
  : >"$GPUNODE_IN/.answer"
  health_error="$unit has not started $process again within $limit s"
  while [ $(($(uptime_now) - told_up)) -le "$limit" ]; do
    now=$(new_process)
    if [ "$now" != "$new_pid" ]; then
      if [ -n "$new_pid" ]; then
        ended=$((ended + 1)) health_error="$process does not stay up"
        [ "$ended" -lt 3 ] || break
      fi
      new_pid=$now since=$(uptime_now)
    elif [ -n "$new_pid" ]; then
      if ! health_command_succeeds; then
        health_error="$process runs, and does not answer"
      elif [ $(($(uptime_now) - since)) -gt "$settle" ]; then
        health_error=''
        touch "$backup/took"
        can_ask || say note "$process stays up; whether it answers was not asked: none of curl, wget and bash is here"
        ! grep -qx served "$GPUNODE_IN/.answer" || say note "$process serves its port; its health was not asked: none of curl, wget and openssl is here"
        return
      fi
    fi
    nap
  done
  tail -n 5 "$GPUNODE_IN/.answer" >>"$log"
  return 1
}

# can_ask: whether one of the health commands, where there are any, has its tool here
can_ask() {
  while IFS= read -r line; do ! have "${line%%"$TAB"*}" || return 0; done <"$backup/health"
  [ ! -s "$backup/health" ]
}

# pod_errors: what the program has logged last, by the files that the kubelet keeps of its containers
pod_errors() {
  # shellcheck disable=SC2012  # the names are the kubelet's
  newest=$(ls -t /var/log/pods/*_"$process"-*/"$process"/*.log 2>/dev/null | head -n 1)
  [ -n "$newest" ] || return 0
  tail -n 20 "$newest" | cut -c 1-400 >>"$log"
  tail -n 2 "$newest" | sed 's/^[^ ]* std[a-z]* [FP] //' | cut -c 1-300 | awk '{ printf "%s%s", (NR > 1 ? " | " : ""), $0 }'
}
