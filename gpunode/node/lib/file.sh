# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables of the program that this is a part of
# One file of a transaction: where its path leads, how new bytes get there.  Stands before transaction.sh.

# flush PATH …: on disk.  An old sync knows no arguments, and then does it for everything; a disk that fails is a failure.
flush() {
  local output
  output=$(sync "$@" 2>&1) && return
  case $output in
    *'put/output error'* | *'No space left'*)
      printf '%s\n' "$output" >>"$log"
      return 1
      ;;
  esac
  sync
}

# temporary PATH N: a name on the same file system that no daemon reads.  CRI-O reads every file below crio.conf.d, the
# kubelet those of manifests: for such a folder it is next to the folder, unless that is another file system.
temporary() {
  folder=$(dirname "$1")
  case ${folder##*/} in
    *.d | manifests)
      # shellcheck disable=SC2046  # two numbers
      set -- "$1" "$2" $(stat -c %d "$folder" "$(dirname "$folder")" 2>/dev/null)
      [ "${3:-}" != "${4:-}" ] || folder=$(dirname "$folder")
      ;;
  esac
  printf '%s/.gpunode.%s.%s' "$folder" "${backup##*/}" "$2"
}

# resolve PATH: where it leads, in $target; says what is in the way otherwise, in $trouble and $fix
resolve() {
  local above kind
  target=$1 trouble='' fix=''
  if [ -L "$1" ]; then
    target=$(readlink -f "$1")
    [ -e "${target:-/nowhere/}" ] || dangling "$1" || return 1
  fi
  if [ -e "$target" ] && [ ! -f "$target" ]; then
    kind="no regular file"
    [ ! -d "$target" ] || kind="a directory"
    trouble="$1 is $kind" fix="move it away: a file has to be there"
    return 1
  fi
  above=$(dirname "$target")
  while [ ! -e "$above" ]; do
    [ ! -L "$above" ] || dangling "$above" || return 1
    above=$(dirname "$above")
  done
  [ -d "$above" ] || {
    trouble="$above is a file, and $1 needs a directory there" fix="move it away"
    return 1
  }
}

dangling() {
  trouble="$1 is a symbolic link that leads nowhere ($(readlink "$1"))" fix="remove the link, or create what it names"
  return 1
}

# copy FROM TO: with owner, mode, times, and where cp knows them ACL, extended attributes and label
copy() {
  cp -a "$1" "$2" 2>/dev/null || cp -p "$1" "$2" 2>>"$log" || return 1
  [ "$(stat -c '%u:%g %a' "$1")" = "$(stat -c '%u:%g %a' "$2")" ] && return
  echo "the owner and mode of $1 cannot be kept" >>"$log"
  return 1
}

# stage FILE OLD|- NEW MODE LIKE|-: NEW gets FILE's bytes, and owner, mode and labels of OLD when there is one
stage() {
  rm -f "$3"
  if [ "$2" != - ]; then
    copy "$2" "$3" || return 1
  else
    (umask 077 && : >"$3") 2>>"$log" || return 1
  fi
  dd if="$1" of="$3" bs=65536 conv=fsync 2>"$log.dd" || {
    grep ': ' "$log.dd" >>"$log" # and not how fast it was
    return 1
  }
  [ "$2" != - ] || own "$3" "$4" "$5" || return 1
  [ "$(hash_of "$3")" = "$(hash_of "$1")" ]
}

# own FILE MODE LIKE|-: mode and owner of a new file; it is never more readable than LIKE
own() {
  bits=$((0$2))
  if [ -e "$3" ]; then
    bits=$((bits & 0$(stat -L -c %a "$3")))
    case $(ls -ldL "$3") in ??????????+*) bits=$((bits & 0707)) ;; esac # of an ACL: the mask, not what the group may
    chown "$(stat -L -c %u:%g "$3")" "$1" 2>>"$log" || bits=$((bits & 0705)) # not root: the group is another one
  fi
  chmod "$(printf '%04o' "$bits")" "$1" 2>>"$log"
}

# why_not: a hint at what fixes the failure that $log ends with
why_not() {
  case $(last_words "$log") in
    *'not permitted'*) echo "the file or its folder may be immutable (lsattr, chattr -i); then run again" ;;
    *'ermission denied'*) echo "run as root; look whether a security module forbids it, then run again" ;;
    *'put/output error'*) echo "the disk fails: look at dmesg" ;;
    *'resource busy'*) echo "it is a mount of its own: edit what is mounted there" ;;
    *) echo "fix that, then run again" ;;
  esac
}

last_reason() { last_words "$log" | sed 's/.*: //'; } # the program's name and the paths are in the log
