# shellcheck shell=sh
# What all scripts but the probe and those that only read share.  It is put before them, behind base.sh.

PATH=$PATH:/usr/local/nvidia/bin # the programs of a driver that an image brought; the probe looks there, too
log=$GPUNODE_IN/.log changes=0
: >>"$log"
[ ! -e "$GPUNODE_IN/state" ] || GPUNODE_STATE=$(cat "$GPUNODE_IN/state") # of a tree that is not this machine's own

TAB=$(printf '\t')

# say KEY TEXT…: one line of the protocol in core/remote.py
say() {
  local field line
  line=gpunode
  for field in "$@"; do
    case $field in *[[:cntrl:]]*) field=$(printf '%s' "$field" | tr '\n\t' '  ') ;; esac
    line=$line$TAB$field
  done
  printf '%s\n' "$line"
}

# changed KIND NAME TEXT [WAS NOW]: a thing that is changed, or in check mode would be (core/model, Changed); $changes counts them
changed() { changes=$((changes + 1)) && say changed "$1" "$2" "${4:-}" "${5:-}" "$3"; }

# logged NAME COMMAND…: what it prints is in .NAME, and at the end of the log
logged() {
  local printed
  printed=$GPUNODE_IN/.$1
  shift
  "$@" >"$printed" 2>&1
  set -- $?
  cat "$printed" >>"$log"
  return "$1"
}

# attempt COMMAND…: what it prints goes to the log, and its last words into $why; the log's may be another command's
# shellcheck disable=SC2034 # for the script
attempt() {
  logged attempt "$@" </dev/null 9>&-
  set -- $?
  why=$(last_words "$GPUNODE_IN/.attempt")
  return "$1"
}

# last_words FILE: its last line
last_words() { grep -v '^ *$' "$1" 2>/dev/null | tail -n 1 | cut -c 1-400; }

# hash_of PATH: sha256 in hex, or "absent"
hash_of() {
  local sum
  [ -e "$1" ] || { echo absent && return; }
  sum=$(sha256sum <"$1") && printf '%s\n' "${sum%% *}"
}

# finish STATUS MESSAGE [FIX]: the last thing a script does; what it has printed is kept for follow.sh until the next one
finish() {
  [ -z "${leased:-}" ] || lease_for || {
    rm -f "$GPUNODE_STATE/.lease" 2>/dev/null
    say note "the lease of this node could not be renewed, another controller may begin: is the file system of $GPUNODE_STATE full?"
  }
  say status "$1"
  say message "$2"
  case $2 in # by the words of libc, apt, libdnf, rpm and libalpm
    *[Nn]'o space left'* | *'uota exceeded'* | *'free space'* | *'disk space'* | *'more space on'* | *'more inodes'* | *'too full'*)
      set -- "$1" "$2" "make room on that file system (df -h, df -i), then run again" ;;
    *'Read-only file system'*) set -- "$1" "$2" "make the file system writable, then run again" ;;
  esac
  [ -z "${3:-}" ] || say fix "$3"
  [ -z "${locked:-}" ] || [ ! -e "$GPUNODE_IN/call" ] ||
    (umask 077 && cd "$GPUNODE_IN" && cat call .printed .errors >"$GPUNODE_STATE/.outcome" && mv -f "$GPUNODE_STATE/.outcome" "$GPUNODE_STATE/outcome") 2>/dev/null || :
  case $1 in
    unchanged | changed) exit 0 ;;
    refused) exit 5 ;;
    *) exit 1 ;;
  esac
}

# not_yet MESSAGE FIX: refused for want of what earlier steps of the same run may bring
not_yet() { say code not-yet && finish refused "$@"; }

# show_log: the log of this script's commands, up to 1 MB of it; no line of it passes for one of the protocol
show_log() { tail -c 1000000 "$log" 2>/dev/null | sed 's/^gpunode/ &/'; }

# run_with_timeout SECONDS COMMAND …: a limit where `timeout` is there
run_with_timeout() {
  if have timeout; then timeout "$@"; else shift && "$@"; fi
}

# uptime_now: in whole seconds; no clock that somebody sets
uptime_now() {
  local now
  read -r now _ </proc/uptime
  echo "${now%%.*}"
}
nap() { sleep 0.3 2>/dev/null || sleep 1; }

is_active() { systemctl is-active -q "$1" >/dev/null 2>&1; }

# unit_runs UNIT: or is about to
unit_runs() { case $(systemctl is-active "$1" 2>/dev/null) in active | activating | reloading) ;; *) return 1 ;; esac }

# act_on start|restart|reload UNIT [SECONDS]: also where systemd refuses that, as the unit has failed too often; SECONDS limit it
act_on() {
  systemctl reset-failed "$2" >/dev/null 2>&1
  ${3:+run_with_timeout "$3"} systemctl "$1" "$2"
}

# unit_log UNIT WORD …: what a unit has logged, all of it: what a process that has ended wrote may not have been read yet
unit_log() {
  run_with_timeout 20 journalctl --sync
  journalctl --no-pager -u "$@"
} 2>/dev/null

# open_gpus: lines `PID PATH` of the device files of NVIDIA's that processes hold open.  One ls for all: a readlink for each open
# file would take seconds.
open_gpus() {
  # shellcheck disable=SC2012
  ls -l /proc/[0-9]*/fd 2>/dev/null | awk '/^\/proc\// { split($0, part, "/"); pid = part[3] }
    / -> \/dev\/nvidia/ { sub(/.* -> /, ""); print pid, $1 }' | sort -u
}

checking() { [ -e "$GPUNODE_IN/check" ]; }
# asking: whether a plan is being made: no repository is fetched
asking() { [ -e "$GPUNODE_IN/ask" ]; }

# requested NAME: the lines of a request file, nothing where the request has none
requested() { [ ! -e "$GPUNODE_IN/$1" ] || cat "$GPUNODE_IN/$1"; }

# word NAME: the first line of a request file
word() {
  local line
  [ -e "$GPUNODE_IN/$1" ] || return 0
  IFS= read -r line <"$GPUNODE_IN/$1" || :
  printf '%s\n' "$line"
}

# pci_gpus: how many GPUs of NVIDIA are on PCI
pci_gpus() {
  for device in /sys/bus/pci/devices/*; do
    case $(cat "$device/vendor" "$device/class" 2>/dev/null | tr -d '\n') in 0x10de0x03*) echo "$device" ;; esac
  done | grep -c .
}

need_root() {
  [ "$(id -u)" = 0 ] || [ -e "$GPUNODE_IN/state" ] || finish refused "this needs root, and runs as $(id -un)" "become root: --become (-b), or ansible_become: true; with --local sudo does it, too"
}

# json_text TEXT: as a JSON string
json_text() {
  case $1 in *[[:cntrl:]\"\\]*) set -- "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')" ;; esac
  printf '"%s"' "$1"
}

# json_list: lines on standard input as a JSON list of strings
json_list() {
  sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/"&"/' | awk 'BEGIN { printf "[" } { printf "%s%s", (NR > 1 ? "," : ""), $0 } END { printf "]" }'
}

# ---------------------------------------------------------------- the journal

# journal OP PHASE [,"MORE":JSON]: one line of the operation $journal_id, which gets an id where it has none; the id ties
# intent and outcome together, the part is the role at work, the run that of the controller
journal() {
  begin_journal
  [ -n "${journal_id:-}" ] || journal_id=$(new_id "$1-$$")
  record "$journal_id" "$@"
}

# new_id NAME: of an operation that begins now
new_id() { echo "$(date -u +%Y%m%dT%H%M%SZ)-$1"; }

# files_id: of a transaction on files; the number is that of the journal's lines before it
files_id() { new_id "files-$(printf '%06d' "$(cat "$GPUNODE_STATE/journal.jsonl" 2>/dev/null | wc -l)")"; }

# begin_journal: with a baseline where there is no record yet, or none after an uninstall
begin_journal() {
  [ -z "${journal_begun:-}" ] || return 0
  case $(last_record) in '' | *'"op":"uninstall"'*) baseline ;; esac
  journal_begun=1
}

# last_record: the last line of the journal, empty where there is none
last_record() { tail -n 3 "$GPUNODE_STATE/journal.jsonl" 2>/dev/null | tr -d '\000' | sed -n '/./h; ${ g; p; }'; }

# record ID OP PHASE [,"MORE":JSON]: with the controller, where one is behind it: it says when its run has ended (release.sh)
record() {
  local controller
  controller=$(word controller) controller=${controller:+",\"controller\":\"$controller\""}
  # what is there of a line that was cut off, or NUL bytes, is no part of this one
  [ -z "$(tail -c 1 "$GPUNODE_STATE/journal.jsonl" 2>/dev/null | tr '\000' x)" ] || echo >>"$GPUNODE_STATE/journal.jsonl"
  (umask 077 && printf '{"v":1,"id":"%s","at":"%s","op":"%s","phase":"%s","run":"%s","part":"%s"%s}\n' \
    "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$2" "$3" "$(word run)" "$(word part)" "$controller${4:-}" >>"$GPUNODE_STATE/journal.jsonl") ||
    finish failed "cannot write $GPUNODE_STATE/journal.jsonl" "make room on the file system of /var"
  sync "$GPUNODE_STATE/journal.jsonl" 2>/dev/null || sync
}

# prior KIND NAME FROM TO: what a thing is, in the journal before it is changed; core/undo/journal.py knows the kinds
prior() {
  begin_journal
  record "$(new_id "state-$$")" state 'done' ",\"kind\":\"$1\",\"name\":$(json_text "$2"),\"from\":$(json_text "$3"),\"to\":$(json_text "$4")"
}

# ecc_next GPU: the mode of its ECC after the next reset
ecc_next() { nvidia-smi -i "$1" --query-gpu=ecc.mode.pending --format=csv,noheader </dev/null 2>/dev/null; }

# baseline: the first record, before gpunode changes anything: what a person or another tool has set up here.  The folder
# gets its name after the record: where there is such a folder, there was a journal.
baseline() {
  local id folder copy
  [ ! -e "$GPUNODE_IN/state" ] || return 0 # of another tree nothing is known
  id=$(new_id baseline)
  copy=$GPUNODE_STATE/backup/$id folder=$GPUNODE_STATE/backup/.baseline
  rm -rf "$folder"
  (umask 077 && mkdir -p "$folder") || finish failed "cannot write $folder" "make room on the file system of /var"
  dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' >"$folder/packages" 2>/dev/null ||
    rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\n' 2>/dev/null | sort >"$folder/packages"
  [ -s "$folder/packages" ] || pacman -Q >"$folder/packages" 2>/dev/null
  find /etc/systemd/system -type l >"$folder/units" 2>/dev/null # systemd itself takes half a second to say which are enabled
  # shellcheck disable=SC2154,SC2086 # core/engines.py: folders
  find $ENGINE_FOLDERS /etc/cdi /etc/nvidia* /etc/modprobe.d /etc/modules-load.d \
    -type f -exec sha256sum {} + >"$folder/files" 2>/dev/null
  record "$id" baseline 'done' ",\"packages\":$(grep -Ei "nvidia|cuda|$ENGINE_PACKAGES" "$folder/packages" | json_list),\"driver\":$(
    json_text "$(cat /sys/module/nvidia/version 2>/dev/null)"),\"modules\":$(kernels_own | json_list),\"kernel\":$(json_text "$(uname -r)")"
  mv "$folder" "$copy"
}

# kernels_own: drivers of the kernel's own that are loaded, and that NVIDIA's keeps out at the next boot
kernels_own() { local module; for module in nouveau nova_core; do [ ! -d "/sys/module/$module" ] || echo "$module"; done; }

# alternative NAME: how /usr/local/NAME comes about: auto, manual PATH, link PATH, absent
alternative() {
  link=/usr/local/$1
  known=$(update-alternatives --query "$1" 2>/dev/null | sed -n 's/^Status: //p; s/^Value: //p' | tr '\n' ' ')
  case $known in
    auto*) echo auto ;;
    manual*) echo "${known% }" ;;
    *) if [ -L "$link" ]; then echo "link $(readlink "$link")"; elif [ -e "$link" ]; then echo other; else echo absent; fi ;;
  esac
}

# ---------------------------------------------------------------- package managers, by the functions of apt.sh and so on

# manager_ OPERATION …: nothing where it is about configuration that outlives its package, which dpkg alone has
# calls: apt_$1 dnf_$1 zypper_$1 pacman_$1
manager_() {
  local operation
  operation=$1
  shift
  # shellcheck disable=SC2154 # set by the script behind
  case $manager:$operation in apt:*) ;; *:remnants | *:purge | *:edited | *:unchanged) return ;; esac
  "${manager}_$operation" "$@"
}

# first_of PATTERN FILE: the first line that fits (pattern in small letters), with the next one where it ends in a colon
first_of() {
  awk -v pattern="$1" '
    found { sub(/^[ \t]+/, ""); print; exit }
    tolower($0) ~ pattern { if (!/:[ \t]*$/) { print; exit } printf "%s ", $0; found = 1 }' "$2"
}

# package_manager: the distribution's own, where it is here; of one that is not known any
package_manager() {
  family=$(family_manager)
  for known in apt-get:apt dnf:dnf yum:dnf zypper:zypper pacman:pacman; do
    case $family in '' | "${known#*:}") have "${known%:*}" && echo "${known#*:}" && return ;; esac
  done
}
