#!/bin/sh
# One transaction on files: lock, finish or undo what an interrupted run left, compare hashes, back up, journal,
# write atomically, validate, restart or reload, look whether the service is healthy; if not, put everything back.
# Request and output: core/edits/commit.py.  Runs behind common.sh, file.sh, service.sh and transaction.sh.

# shellcheck disable=SC2034,SC2154  # variables of the parts before it

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
later='' # whether the proof of this run's own transaction is left to another run

# ---------------------------------------------------------------- recover

# recover: transactions with an intent and no outcome; one whose files are all in place is finished, else undone.  Those
# that the request names are left to `prove`.
recover() {
  recovered=0
  for journal_id in $(unfinished files | if [ -e "$GPUNODE_IN/settling" ]; then grep -Fxv -f "$GPUNODE_IN/settling"; else cat; fi); do
    recovered=1
    checking && continue
    [ -r "$GPUNODE_STATE/backup/$journal_id/plan" ] || {
      journal files failed ',"message":"its backup is gone"'
      continue
    }
    load "$GPUNODE_STATE/backup/$journal_id"
    if in_place; then
      # a run that ended between `notified` and `took` leaves open which configuration the service runs with
      if { [ -e "$backup/took" ] && unit_running && becomes_healthy; } ||
        { validate "$config" && { [ -z "$verb" ] || ! unit_running || notify_unit; }; }; then
        accepted ',"recovered":true'
        changed transaction "$journal_id" "finished the change $journal_id that was interrupted"
        continue
      fi
      undo "the change $journal_id was interrupted, and undone: ${health_error:-$verdict}" "run again to see why"
    fi
    restore || {
      rejected failed ",\"message\":$(json_text "changed by another program:$not_restored")"
      say note "the change $journal_id was interrupted; another program changed$not_restored since: left as it is"
      continue
    }
    [ ! -e "$backup/notified" ] || notify_unit || say note "$health_error, after the change $journal_id was undone"
    rejected undone ',"recovered":true'
    changed transaction "$journal_id" "undid the change $journal_id that was interrupted"
  done
  journal_id=''
}

# leave: the unit is healthy; that it stays up is proven by a later run, so that engines settle side by side.  Until then
# the transaction has no outcome: a run that finds it interrupted looks at the unit itself.
leave() {
  echo "$pid $told_at $told_up" >"$backup/settling"
  say settling "$journal_id"
}

# watch: how the unit is before the first write
watch() {
  load "$GPUNODE_STATE/backup/$journal_id"
  note_processes
  plugin_was=ok
  [ -z "$unit" ] || cri_plugin_ok || plugin_was=bad
  { printf 'plugin_was %s\n' "$plugin_was" >>"$backup/after" && judge_before; } 2>>"$log"
}

# prove ID: its unit has stayed up since, with its containers; else its files are put back
prove() {
  local reason
  journal_id=$1
  load "$GPUNODE_STATE/backup/$1"
  read -r pid told_at told_up <"$backup/settling"
  { stays_up && containers_kept; } || {
    reason=$(unit_errors)
    undo_unhealthy "$reason"
  }
  accepted
}

# prove_all: those that the request names, each in a shell of its own, which ends where its files are put back
prove_all() {
  local failed id
  failed=0
  unfinished files >"$GPUNODE_IN/.unfinished"
  requested settling | grep -Fx -f "$GPUNODE_IN/.unfinished" >"$GPUNODE_IN/.settling"
  while read -r id; do (prove "$id" </dev/null) || failed=$?; done <"$GPUNODE_IN/.settling"
  [ "$failed" = 0 ] || exit "$failed"
  forget
  finish unchanged "what was restarted stays up"
}

# undo_unhealthy WHAT: because of $health_error, and of what the daemon said of it
undo_unhealthy() { undo "$health_error with the new configuration${1:+: $1}" "the files are as they were; journalctl -u $unit has more"; }

in_place() {
  while IFS=$TAB read -r n _ _ after _ _ _ path; do
    [ "$(hash_of "$path")" = "$after" ] || return 1
    rm -f "$(temporary "$path" "$n")"
  done <"$backup/plan"
}

# ---------------------------------------------------------------- a new transaction

# conclude MESSAGE: the end of a run that did, or would do, what `compare` found; no plan has said what an undo disturbs
conclude() {
  local ends
  say_files
  if [ -e "$GPUNODE_IN/used" ] && [ "${verb:-}" = restart ] && unit_running; then
    ends=0
    ! checking || [ "$kind" != docker ] || [ -n "$(containers)" ] || ends=$(client ps -q 2>/dev/null | grep -c .)
    changed unit "$unit" "restarts $unit$([ "$ends" = 0 ] || echo ", which ends its containers: $ends run")"
  fi
  finish changed "$1"
}

# validate_staged: when the root config alone changes, the daemon judges the new bytes before they are in place
validate_staged() {
  tried=0
  [ "$(grep -c . "$backup/plan")" = 1 ] || return 0
  IFS=$TAB read -r n action _ _ _ _ _ path <"$backup/plan"
  resolve "$config" && [ "$target" = "$path" ] && [ "$action" = write ] || return 0
  tried=1
  validate "$(temporary "$path" "$n")" || undo "$verdict" "nothing was changed; $fix"
}

# files_in LIST: how many there are, as people say it
files_in() { awk 'END { print NR (NR == 1 ? " file" : " files") }' "$1"; }

[ -e "$GPUNODE_IN/changes" ] || : >"$GPUNODE_IN/changes"
[ -e "$GPUNODE_IN/state" ] || need_root
checking || lock
recover
[ -e "$GPUNODE_IN/state" ] || [ -z "$(unfinished pause)" ] || { recovered=1 && bring_back; }
compare
[ ! -e "$GPUNODE_IN/settling" ] || [ -s "$GPUNODE_IN/changes" ] || checking || prove_all
if [ ! -s "$GPUNODE_IN/.todo" ]; then
  [ "$recovered" = 0 ] || finish changed "an interrupted change was finished or undone"
  finish unchanged "every file is as it should be"
fi
if grep -qsx 'reread yes' "$GPUNODE_IN/after" && ! keep_gpus; then
  finish refused "systemd has to read its units again, and would take their GPUs from running containers: $affected_containers" \
    "stop these containers first (docs/runtime.md)"
fi
! checking || [ ! -e "$GPUNODE_IN/used" ] || [ ! -s "$GPUNODE_IN/after" ] || load "$GPUNODE_IN"
checking && conclude "$(files_in "$GPUNODE_IN/.todo") would change"
keep_backup
watch || no_room
intend
stage_all
validate_staged
install_all
[ "$tried" = 1 ] || validate "$config" || undo "$verdict" "nothing was restarted; $fix"
notified=''
if [ -n "$verb" ]; then
  if unit_running; then
    notified=1 later=$(word later)
    notify_unit || {
      why=$(unit_errors)
      undo_unhealthy "$why"
    }
  else
    say note "$unit does not run: the change counts from its next start on"
  fi
fi
if [ -n "$notified" ] && leaves_it; then leave; else accepted; fi
forget
conclude "$(files_in "$backup/plan") changed${notified:+, $(action_done)}"
