# shellcheck shell=sh
# What packages.sh, activate.sh and smoke.sh share.  It is put before them: one program, nothing to source on the node.

GPUNODE_STATE=/var/lib/gpunode
[ ! -e "$GPUNODE_IN/state" ] || GPUNODE_STATE=$(cat "$GPUNODE_IN/state") # of a tree that is not this machine's own

# say KEY TEXT: one line of the protocol in core/remote.py
say() { printf 'gpunode\t%s\t%s\n' "$1" "$(printf '%s' "$2" | tr '\n\t' '  ')"; }

# finish STATUS MESSAGE [FIX]: the last thing a script does
finish() {
  say status "$1"
  say message "$2"
  [ -z "${3:-}" ] || say fix "$3"
  case $1 in
    unchanged | changed) exit 0 ;;
    refused) exit 5 ;;
    *) exit 1 ;;
  esac
}

have() { command -v "$1" >/dev/null 2>&1; }
checking() { [ -e "$GPUNODE_IN/check" ]; }

# requested NAME: the lines of a request file, nothing where the request has none
requested() { [ ! -e "$GPUNODE_IN/$1" ] || cat "$GPUNODE_IN/$1"; }

# word NAME: the first line of a request file
word() { requested "$1" | head -n 1; }

need_root() {
  [ "$(id -u)" = 0 ] || [ -e "$GPUNODE_IN/state" ] || finish refused "this needs root, and runs as $(id -un)" "set ansible_become: true (or --become) for this host"
}

# json_text TEXT: as a JSON string
json_text() {
  printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# json_list: lines on standard input as a JSON list of strings
json_list() {
  sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/"&"/' | awk 'BEGIN { printf "[" } { printf "%s%s", (NR > 1 ? "," : ""), $0 } END { printf "]" }'
}

# lock: one writer at a time on this node, as commit.sh does; the lock goes with the process
lock() {
  why=$(umask 077 && mkdir -p "$GPUNODE_STATE" 2>&1) || finish failed "cannot create $GPUNODE_STATE: ${why##*: }" "mend that, then run again"
  if have flock; then
    why=$( (: >>"$GPUNODE_STATE/lock") 2>&1) || finish failed "cannot write $GPUNODE_STATE/lock: ${why##*: }" "mend that, then run again"
    exec 9>>"$GPUNODE_STATE/lock"
    flock -w 60 9 || finish failed "another gpunode is at work on this node" "wait for it to end, then run again"
    return
  fi
  mine=$GPUNODE_STATE/lock.pid tries=0 # a link that names its owner
  until ln -s "$(sh -c 'echo $PPID')" "$mine" 2>/dev/null; do
    owner=$(readlink "$mine")
    if [ -n "$owner" ] && [ ! -d "/proc/$owner" ] && mkdir "$mine.$owner" 2>/dev/null; then # one takes it from the dead
      [ "$(readlink "$mine")" != "$owner" ] || rm -f "$mine"
      rmdir "$mine.$owner"
      continue
    fi
    tries=$((tries + 1))
    [ "$tries" -le 60 ] || finish failed "another gpunode is at work on this node" "wait for it to end, then run again"
    sleep 1
  done
  trap 'rm -f "$mine"' EXIT
}

# journal OP PHASE [,"MORE":JSON]: one line; the id ties intent and outcome together
journal() {
  [ -n "${journal_id:-}" ] || journal_id=$(date -u +%Y%m%dT%H%M%SZ)-$1-$$
  [ -z "$(tail -c 1 "$GPUNODE_STATE/journal.jsonl" 2>/dev/null)" ] || echo >>"$GPUNODE_STATE/journal.jsonl" # a line torn off
  (umask 077 && printf '{"v":1,"id":"%s","at":"%s","op":"%s","phase":"%s"%s}\n' \
    "$journal_id" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" "$2" "${3:-}" >>"$GPUNODE_STATE/journal.jsonl") ||
    finish failed "cannot write $GPUNODE_STATE/journal.jsonl" "make room on the file system of /var"
  sync "$GPUNODE_STATE/journal.jsonl" 2>/dev/null || sync
}

# unfinished OP: ids of operations that began and have no outcome (a run was killed, or the power went)
unfinished() {
  [ -e "$GPUNODE_STATE/journal.jsonl" ] || return 0
  awk -v op="\"op\":\"$1\"" '
    index($0, op) && match($0, /"id":"[^"]*"/) { id = substr($0, RSTART + 6, RLENGTH - 7); open_[id] = index($0, "\"phase\":\"intent\"") > 0 }
    END { for (id in open_) if (open_[id]) print id }' "$GPUNODE_STATE/journal.jsonl"
}

# close_interrupted OP WHY: gives every unfinished operation its outcome
close_interrupted() {
  for journal_id in $(unfinished "$1"); do
    journal "$1" failed ",\"message\":$(json_text "$2")"
  done
  journal_id=
}
