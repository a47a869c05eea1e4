# shellcheck shell=sh
# One writer at a time on a node: the lock, which goes with the process, and the lease, which outlives it.  Follows
# common.sh, whose `finish` renews the lease.

# lock: one writer at a time on this node, as commit.sh does; the lock goes with the process.  Who would be refused is
# refused before it waits.
lock() {
  local reason
  reason=$(umask 077 && mkdir -p "$GPUNODE_STATE" 2>&1) || finish failed "cannot create $GPUNODE_STATE: $(lock_words "$reason")" "it has to be a folder of root's: ls -ld $GPUNODE_STATE; df -h and df -i of its file system"
  lease_refuse
  have flock || finish refused "this node has no flock, by which gpunode's scripts take turns" "install util-linux"
  reason=$( (: >>"$GPUNODE_STATE/lock") 2>&1) || finish failed "cannot write $GPUNODE_STATE/lock: ${reason##*: }" "fix that, then run again"
  exec 9>>"$GPUNODE_STATE/lock"
  flock -w "$(lock_seconds)" 9 || finish failed "$(lock_owner) is at work on this node" "wait for it to end, then run again"
  lock_sign
  lease
}

# lock_words ANSWER: why, in words; else the end of what mkdir answered
lock_words() {
  if [ -L "$GPUNODE_STATE" ]; then
    echo "it is a link to $(readlink "$GPUNODE_STATE"), where no folder is"
  elif [ -e "$GPUNODE_STATE" ] && [ ! -d "$GPUNODE_STATE" ]; then
    echo "something that is no folder has that name"
  else
    echo "${1##*: }"
  fi
}

# lock_seconds: seconds to wait for the lock; long for what an earlier, interrupted run of the same controller still does here
lock_seconds() {
  local controller
  controller=$(cut -d ' ' -f 2 "$GPUNODE_STATE/lease" 2>/dev/null)
  if [ -n "$controller" ] && [ "$controller" = "$(word controller)" ]; then echo 900; else echo 60; fi
}

# lock_sign: who holds the lock is written into its file, for those that wait; nothing where no controller is behind it
lock_sign() { (signed >"$GPUNODE_STATE/lock") 2>/dev/null || :; }

# lock_owner: who holds the lock
lock_owner() {
  local line
  line=$(head -n 1 "$GPUNODE_STATE/lock" 2>/dev/null)
  case $line in
    *?' '?*) echo "$line" | awk '{ print "the controller " $1 " (run " $2 ")" }' ;;
    *) echo "another gpunode" ;;
  esac
}

# signed: «CONTROLLER RUN GENERATION» of the run that this script is of; the generation grows with each run that its
# controller starts.  Nothing without a controller.
signed() {
  local generation run
  run=$(word run) generation=$(word generation)
  [ -z "$(word controller)" ] || echo "$(word controller) ${run:-unknown}${generation:+ $generation}"
}

# lease: this node is one controller's until LEASE seconds after its last command, or until its run gave it back.  The lock
# keeps scripts apart, this keeps another controller out between two scripts of a run, and a run out that is not the last
# one of its own controller.
lease() {
  # shellcheck disable=SC2034 # for `finish`
  locked=1
  lease_refuse
  leased=$(word controller)
  [ -z "$leased" ] || lease_for
}

# lease_refuse: ends the script where the node is another controller's, or where a later run of the same one has been
lease_refuse() {
  local latest left mine other run
  [ -n "$(word controller)" ] || return 0
  left='' other='' run='' latest=''
  read -r left other run latest <<EOF || :
$(lease_now)
EOF
  [ -n "$latest" ] || return 0
  if [ "$other" != "$(word controller)" ]; then
    [ -z "$(word break_lock)" ] || return 0
    [ "$left" -gt 0 ] || ! has_worked "$(word run)" ||
      finish refused "the controller $other has worked on this node since (run $run), while this run slept" \
        "start it again: its plan is of the node as it was before (gpunode runs resume)"
    [ "$left" -gt 0 ] || return 0
    finish refused "the controller $other is at work on this node (run $run, for $left seconds more)" \
      "wait for it to end, or take the node from it: --break-lock"
  fi
  mine=$(word generation)
  [ "${mine:-$latest}" -lt "$latest" ] || return 0
  # who asks for --break-lock takes the node from what is at work now, not from runs that are started later
  [ "$left" -gt 0 ] || [ -z "$(word break_lock)" ] || return 0
  finish refused "run $run of the same controller was started after this one, and has worked on this node" \
    "leave the node to that run, or start this one again (gpunode runs resume)"
}

# has_worked RUN: whether the journal has a record of this run
has_worked() { [ -n "$1" ] && journal_lines | grep -qF "\"run\":\"$1\""; }

# lease_for: the lease is this run's from now on; one that this run has given back is not taken again
lease_for() {
  local expiry
  expiry=$(($(date +%s) + LEASE))
  [ "$(cat "$GPUNODE_STATE/released" 2>/dev/null)" != "$(signed)" ] || expiry=0
  (umask 077 && echo "$expiry $(signed)" >"$GPUNODE_STATE/.lease") 2>/dev/null &&
    mv -f "$GPUNODE_STATE/.lease" "$GPUNODE_STATE/lease"
}

# lease_back: this run is over.  It is written into a file of its own, without the lock: a script of the run that still
# works here holds that, and writes the lease once more when it ends.
lease_back() {
  local line
  line=$(head -n 1 "$GPUNODE_STATE/lease" 2>/dev/null)
  [ -n "$(signed)" ] && [ "${line#* }" = "$(signed)" ] || return 0
  (umask 077 && signed >"$GPUNODE_STATE/.released") 2>/dev/null && mv -f "$GPUNODE_STATE/.released" "$GPUNODE_STATE/released"
}
