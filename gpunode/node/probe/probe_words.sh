# shellcheck shell=sh
# shellcheck disable=SC2034  # variables that the parts behind read
# The words that the sections of the probe are written in.  Stands before the parts of probe.sh.

TEXT_MAX=262144 # bytes of a command's output that are sent

LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib:/usr/local/nvidia/bin
GOGC=off # engines are Go programs, and end before their garbage matters
export LC_ALL PATH GOGC
tab=$(printf '\t')
newline='
'

line() { printf '| %s\n' "$*"; }
remark() { printf '! %s\n' "$*"; }
denied() { printf '!! %s\n' "$*"; } # a remark that root would not get
exists() { [ -e "$1" ] || [ -L "$1" ]; }
any() { [ -e "$1" ]; } # of the files that a glob names
by_lines() { set -f && IFS=$newline; }
by_words() { set +f && unset IFS; }
booted_systemd() { [ -d /run/systemd/system ]; }

# first FILE: its first line, without a fork, in $REPLY
first() {
  REPLY=
  [ -r "$1" ] && IFS= read -r REPLY <"$1" 2>/dev/null
  [ -n "$REPLY" ]
}

# quote: standard input as content lines; says when it cuts.  One process without children: see ask.
quote() {
  local left text
  left=$TEXT_MAX
  while IFS= read -r text || [ -n "$text" ]; do
    left=$((left - ${#text} - 1))
    if [ "$left" -lt 0 ]; then
      remark "cut off at $TEXT_MAX bytes"
      break
    fi
    line "$text"
  done
}

# guard SECONDS PID: in the background, kill PID unless the guard is ended before
guard() {
  (
    nap=
    trap 'kill "$nap"; exit' TERM
    sleep "$1" &
    nap=$!
    wait "$nap"
    kill -9 "$2"
  ) >/dev/null 2>&1 &
}

# within SECONDS COMMAND…: runs it, and kills it when it takes longer; exit status 124 or 137 then
within() {
  local seconds child watch ended
  if [ "$TIMEOUT" ]; then # devices.sh has tried it
    timeout -k 1 "$@"
    return
  fi
  seconds=$1
  shift
  "$@" &
  child=$!
  guard "$seconds" "$child"
  watch=$!
  wait "$child" 2>/dev/null
  ended=$?
  kill "$watch" 2>/dev/null
  return "$ended"
}

# answer SECONDS COMMAND…: what it prints, and a last line unless it ends well
answer() {
  local status
  within "$@" </dev/null
  status=$?
  case $status in
  0) ;;
  124 | 137) printf '\nexit: no answer within %s s\n' "$1" ;;
  *) printf '\nexit: %s\n' "$status" ;;
  esac
}

# in_full SECONDS COMMAND…: what it prints, and a last line `cut SECONDS` where it was not done by then
in_full() {
  within "$@" </dev/null
  case $? in 124 | 137) printf '\ncut %s\n' "$1" ;; esac
}

# ask SECONDS COMMAND…: its answer, quoted, for programs that touch no hardware
ask() { answer "$@" 2>&1 | quote; }

# ask_hardware SECONDS COMMAND…: the same.  A process in uninterruptible sleep (a GPU fell off the bus) outlives even
# SIGKILL: then the reader of its pipe is ended, nobody holds the probe's own output open, and the probe goes on.
ask_hardware() {
  local called patience reader watch
  called="$2 ${3:-}"
  patience=$(($1 + 2))
  answer "$@" 2>&1 | quote &
  reader=$!
  guard "$patience" "$reader"
  watch=$!
  wait "$reader" 2>/dev/null || remark "$called did not answer, and cannot be ended"
  kill "$watch" 2>/dev/null
  wait "$watch" 2>/dev/null
}

# kernel_messages: what the kernel said since it started: by its ring where that still has the beginning, else by the
# journal of this boot, else what the ring has left
kernel_messages() {
  if within 3 dmesg 2>/dev/null | grep -q 'Linux version '; then
    within 3 dmesg
  elif have journalctl && [ "$(within 5 journalctl -q -k -b -n 1 --no-pager -o cat 2>/dev/null)" ]; then
    within 10 journalctl -q -k -b --no-pager -o short-iso 2>/dev/null
  else
    within 3 dmesg 2>/dev/null
  fi
}
