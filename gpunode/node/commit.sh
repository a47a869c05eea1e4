#!/bin/sh
# One transaction on files: lock, finish or undo what an interrupted run left, compare hashes, back up, journal,
# write atomically, validate, restart or reload, look whether the service is healthy; if not, put everything back.
# Request and output: core/requests.py.  Runs behind common.sh.
#
# State of a transaction: $GPUNODE_STATE/backup/ID/ with N.old (cp -a of a file that was there), `plan` (below), `after`
# (what follows the writes), and `told` before the service is restarted, `took` after it.  The journal's intent is
# written after the backup and before the first write; so an intent without outcome finds what it needs to be finished
# or undone.
# Lines of `plan`: N, write or remove, hash before ("absent"), hash after, mode of a new file, folder to create, path;
# separated by tabs, and the path is where symbolic links lead.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
TAB=$(printf '\t')
log=$GPUNODE_IN/.log
: >"$log"

hash_of() {
  if [ -e "$1" ]; then
    sum=$(sha256sum <"$1") && printf '%s\n' "${sum%% *}"
  else
    echo absent
  fi
}

flush() { sync "$@" 2>/dev/null || sync; }
last_words() { tail -n 1 "$log"; }
temporary() { printf '%s/.gpunode.%s.%s' "$(dirname "$1")" "$(basename "$backup")" "$2"; } # a name no daemon reads

# resolve PATH: where it leads, in $target; says what is in the way otherwise, in $trouble and $mend
resolve() {
  target=$1 trouble='' mend=''
  if [ -L "$1" ]; then
    target=$(readlink -f "$1")
    [ -e "${target:-/nowhere/}" ] || {
      trouble="$1 is a symbolic link that leads nowhere ($(readlink "$1"))" mend="remove the link, or create what it names"
      return 1
    }
  fi
  if [ -e "$target" ] && [ ! -f "$target" ]; then
    kind="no regular file"
    [ ! -d "$target" ] || kind="a directory"
    trouble="$1 is $kind" mend="move it away: a file has to be there"
    return 1
  fi
  above=$(dirname "$target")
  while [ ! -e "$above" ]; do above=$(dirname "$above"); done
  [ -d "$above" ] || {
    trouble="$above is a file, and $1 needs a directory there" mend="move it away"
    return 1
  }
}

# ---------------------------------------------------------------- one file

# put FILE OLD|- TARGET MODE N: TARGET gets FILE's bytes, and owner, mode and labels of OLD when there is one
put() {
  new=$(temporary "$3" "$5")
  rm -f "$new"
  if [ "$2" != - ]; then
    cp -a "$2" "$new" 2>>"$log" || cp -p "$2" "$new" 2>>"$log" || return 1
  else
    (umask 077 && : >"$new") 2>>"$log" || return 1
  fi
  dd if="$1" of="$new" bs=65536 conv=fsync 2>"$log.dd" || {
    grep '^dd' "$log.dd" >>"$log" # and not how fast it was
    return 1
  }
  if [ "$2" = - ]; then
    chmod "$4" "$new" 2>>"$log" || return 1
  elif [ "$1" = "$2" ]; then
    touch -r "$1" "$new" # put back: with the time it had
  fi
  [ "$(hash_of "$new")" = "$(hash_of "$1")" ] || return 1
  mv -f "$new" "$3" 2>>"$log" || return 1
  if [ "$2" = - ] && have restorecon; then restorecon "$3" 2>>"$log"; fi
  flush "$(dirname "$3")"
}

# ---------------------------------------------------------------- the service

unit_pid() { systemctl show -p MainPID "$unit" 2>/dev/null | sed 's/^MainPID=//'; }
unit_active() { [ "$(systemctl is-active "$unit" 2>/dev/null)" = active ]; }

# whether containerd's plugin list calls the wanted plugin ok; true where nobody can be asked
plugin_ok() {
  [ -n "$plugin" ] && have ctr || return 0
  ctr --address "$socket" plugins ls >"$GPUNODE_IN/.plugins" 2>>"$log" || return 1
  awk -v id="$plugin" '$2 == id && $NF == "ok" { found = 1 } $1 == "io.containerd.cri.v1" && $NF == "error" { bad = 1 }
    END { exit !found || bad }' "$GPUNODE_IN/.plugins"
}

# the first health command whose tool is there has to succeed; without any, the socket has to exist
answers() {
  [ -z "$socket" ] || [ -S "$socket" ] || return 1
  while IFS= read -r line; do
    set -f
    IFS=$TAB
    # shellcheck disable=SC2086  # words of a command, split at tabs
    set -- $line
    unset IFS
    set +f
    have "$1" || continue
    patience 20 "$@" >>"$log" 2>&1 9>&-
    return
  done <"$backup/health"
}

# patience SECONDS COMMAND …: a limit where `timeout` is there (dockerd's unit has none for its start)
patience() {
  if have timeout; then timeout "$@"; else shift && "$@"; fi
}

# healthy: the unit is active and stays so with the same process, its socket answers, its plugin is ok; else $illness
healthy() {
  illness=''
  waited=0
  until unit_active && answers && { [ "$plugin_was" = bad ] || plugin_ok; }; do
    if ! unit_active; then
      [ "$(systemctl is-active "$unit" 2>/dev/null)" = activating ] || { illness="$unit is not active"; return 1; }
    fi
    waited=$((waited + 1))
    [ "$waited" -le 30 ] || break
    sleep 1
  done
  unit_active || illness="$unit is not active"
  [ -n "$illness" ] || answers || illness="$unit does not answer"
  [ -n "$illness" ] || [ "$plugin_was" = bad ] || plugin_ok || illness="$unit did not load its plugin $plugin"
  [ -z "$illness" ] || return 1
  pid=$(unit_pid)
  for _ in $(seq "${settle:-3}"); do
    sleep 1
    unit_active && [ "$(unit_pid)" = "$pid" ] && continue
    illness="$unit does not stay up"
    return 1
  done
}

# tell: restart or reload the unit and wait until it is healthy
tell() {
  touch "$backup/told"
  told_at=$(date +%s)
  flush "$backup/told"
  systemctl reset-failed "$unit" >/dev/null 2>&1
  patience 180 systemctl "$verb" "$unit" >>"$log" 2>&1 9>&- || {
    illness="$unit does not $verb"
    return 1
  }
  touch "$backup/took"
  healthy
}

# unit_words: the line that says most of what the daemon, not systemd, has logged since it was told
unit_words() {
  have journalctl || return 0
  journalctl -u "$unit" --since "@$told_at" -n 100 --no-pager -o cat 2>/dev/null |
    grep -vE 'level=(info|warning|debug)|^(Start|Stopp|Finished|Failed to start|Dependency failed|Scheduled restart|[^ ]+[.]service: )' |
    awk 'tolower($0) ~ /error|fatal|fail|invalid|cannot|unable|panic/ { said = $0 } { last = $0 } END { print (said != "" ? said : last) }' |
    cut -c 1-400
}

# load ID: what follows the writes of a transaction, from its `after` (lines KEY VALUE)
load() {
  backup=$GPUNODE_STATE/backup/$1
  unit='' verb='' socket='' plugin='' plugin_was='' settle='' config=''
  while read -r key value; do
    case $key in
      unit) unit=$value ;;
      verb) verb=$value ;;
      socket) socket=$value ;;
      plugin) plugin=$value ;;
      plugin_was) plugin_was=$value ;;
      settle) settle=$value ;;
      config) config=$value ;;
    esac
  done <"$backup/after"
}

# ---------------------------------------------------------------- undo and recover

# restore: every file of the transaction as it was; files that somebody else changed since are left and named
restore() {
  left=''
  while IFS=$TAB read -r n _ before after mode made path; do
    rm -f "$(temporary "$path" "$n")" "$(temporary "$path" try)"
    now=$(hash_of "$path")
    if [ "$now" = "$before" ]; then
      :
    elif [ "$now" != "$after" ]; then
      left="$left $path"
    elif [ "$before" = absent ]; then
      rm -f "$path" || left="$left $path"
      flush "$(dirname "$path")"
    else
      put "$backup/$n.old" "$backup/$n.old" "$path" "$mode" "$n" || left="$left $path"
    fi
    [ "$made" = - ] || prune "$(dirname "$path")" "$made"
  done <"$backup/plan"
  [ -z "$left" ]
}

# prune FOLDER TOP: removes the empty folders from FOLDER up to TOP, which the transaction created
prune() {
  folder=$1
  while [ "${#folder}" -ge "${#2}" ] && rmdir "$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
}

# undo WHY FIX: put all back, bring the service back, and end
undo() {
  words=$1 fix=$2 status=rolled_back
  restore || {
    status=failed
    words="$words; could not restore$left: $(last_words)"
    fix="put back by hand from $backup, then restart ${unit:-what reads it}"
  }
  if [ -e "$backup/told" ]; then
    tell || {
      words="$words; and after the files were put back: $illness"
      fix="look at journalctl -u $unit; $fix"
    }
  fi
  phase=undone
  [ "$status" = rolled_back ] || phase=failed
  journal files "$phase" ",\"message\":$(json_text "$words")"
  cat "$log"
  finish "$status" "$words" "$fix"
}

# recover: transactions with an intent and no outcome; one whose files are all in place is finished, else undone
recover() {
  recovered=0
  for journal_id in $(unfinished files); do
    recovered=1
    checking && continue
    [ -r "$GPUNODE_STATE/backup/$journal_id/plan" ] || {
      journal files failed ',"message":"its backup is gone"'
      continue
    }
    load "$journal_id"
    if in_place; then
      # a run that ended between «told» and «took» leaves open which configuration the service runs with
      if [ -z "$unit" ] || ! unit_running || { [ -e "$backup/took" ] && healthy; } || { validate "$config" && tell; }; then
        journal files 'done' ',"recovered":true'
        say changed "finished the change $journal_id that was interrupted"
        continue
      fi
      undo "the change $journal_id was interrupted, and undone: ${illness:-the new files are not valid}" "run again to see why"
    fi
    restore || {
      journal files failed ",\"message\":$(json_text "changed by somebody else:$left")"
      say note "the change $journal_id was interrupted; somebody else changed$left since: left as it is"
      continue
    }
    [ ! -e "$backup/told" ] || tell || say note "$illness, after the change $journal_id was undone"
    journal files undone ',"recovered":true'
    say changed "undid the change $journal_id that was interrupted"
  done
  journal_id=''
}

in_place() {
  while IFS=$TAB read -r n _ before after _ _ path; do
    [ "$(hash_of "$path")" = "$after" ] || return 1
    rm -f "$(temporary "$path" "$n")" "$(temporary "$path" try)"
  done <"$backup/plan"
}

# ---------------------------------------------------------------- a new transaction

# unit_running: a unit that nobody runs is not started by an edit of its files; one that failed is given its chance
unit_running() {
  case $(systemctl is-active "$unit" 2>/dev/null) in
    active | activating | reloading | failed) ;;
    *) return 1 ;;
  esac
}

# validate FILE: the daemon's own check; $verdict is what it said.  True where there is no such check.
validate() {
  verdict='' root=$1
  [ -s "$backup/validate" ] || return 0
  set --
  while IFS= read -r word; do
    [ "$word" != @FILE@ ] || word=$root
    set -- "$@" "$word"
  done <"$backup/validate"
  have "$1" || return 0
  patience 60 "$@" >"$GPUNODE_IN/.verdict" 2>&1 9>&- && return
  verdict=$(grep -v 'level=\(info\|warning\)' "$GPUNODE_IN/.verdict" | tail -n 1 | cut -c 1-400)
  case $verdict in # the name of the file for a try says nothing to anybody
    *"$root"*) verdict=${verdict%%"$root"*}$config${verdict#*"$root"} ;;
  esac
  case $(cat "$GPUNODE_IN/.verdict") in # docker 20.10 has no --validate
    *'unknown flag'* | *'flag provided but not defined'*) return 0 ;;
  esac
  return 1
}

# compare: every file that was read is still what it was; lists in .todo what is to be done
compare() {
  : >"$GPUNODE_IN/.todo"
  : >"$GPUNODE_IN/.said"
  while IFS=$TAB read -r n action mode expect path; do
    resolve "$path" || finish refused "$trouble" "$mend"
    before=$(hash_of "$target") || finish failed "$path cannot be read" "run as root"
    if [ "$expect" != any ] && [ "$expect" != "$before" ]; then
      finish refused "$path changed since it was read" "plan again: the plan rests on another version of the file"
    fi
    case $action in
      read) continue ;;
      remove) after=absent ;;
      *) after=$(hash_of "$GPUNODE_IN/data.$n") ;;
    esac
    [ "$before" != "$after" ] || continue
    [ "$target" = "$path" ] || say note "$path leads to $target"
    made=- folder=$(dirname "$target")
    while [ ! -d "$folder" ]; do made=$folder folder=$(dirname "$folder"); done
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$n" "$action" "$before" "$after" "$mode" "$made" "$target" >>"$GPUNODE_IN/.todo"
    case $action-$before in
      remove-*) echo "removes $path" ;;
      *-absent) echo "creates $path" ;;
      *) echo "rewrites $path" ;;
    esac >>"$GPUNODE_IN/.said"
  done <"$GPUNODE_IN/changes"
}

# changed MESSAGE: the end of a run that did, or would do, what `compare` found
changed() {
  while IFS= read -r line; do say changed "$line"; done <"$GPUNODE_IN/.said"
  finish changed "$1"
}

# keep: backup, plan and intent, all of it on disk before the first write
keep() {
  journal_id=$(date -u +%Y%m%dT%H%M%SZ)-files-$$
  backup=$GPUNODE_STATE/backup/$journal_id
  {
    (umask 077 && mkdir -p "$backup") && cp "$GPUNODE_IN/.todo" "$backup/plan" && requested after >"$backup/after" &&
      requested validate >"$backup/validate" && requested health >"$backup/health"
  } 2>>"$log" || no_room
  list=''
  while IFS=$TAB read -r n _ before after _ _ path; do
    if [ "$before" != absent ]; then
      cp -a "$path" "$backup/$n.old" 2>>"$log" || cp -p "$path" "$backup/$n.old" 2>>"$log" || no_room
      [ "$(hash_of "$backup/$n.old")" = "$before" ] || no_room
      flush "$backup/$n.old"
    fi
    list="$list,{\"path\":$(json_text "$path"),\"before\":\"$before\",\"after\":\"$after\"}"
  done <"$backup/plan"
  load "$journal_id"
  if [ -n "$unit" ]; then
    plugin_was=ok
    plugin_ok || plugin_was=bad
    printf 'plugin_was %s\n' "$plugin_was" >>"$backup/after" || no_room
  fi
  flush
  journal files intent ",\"files\":[${list#,}],\"unit\":$(json_text "$unit")"
}

no_room() {
  rm -rf "$backup"
  finish failed "cannot keep a backup in $GPUNODE_STATE: $(last_words)" "make room there, or make it writable"
}

# try_beside: when the root config alone changes, the daemon judges the new bytes before they are in place
try_beside() {
  checked=0
  [ "$(grep -c . "$backup/plan")" = 1 ] || return 0
  IFS=$TAB read -r n action before _ mode _ path <"$backup/plan"
  resolve "$config" && [ "$target" = "$path" ] && [ "$action-$before" != "write-absent" ] && [ "$action" = write ] || return 0
  try=$(temporary "$path" try)
  (umask 077 && cp "$GPUNODE_IN/data.$n" "$try") 2>>"$log" || undo "cannot write $try: $(last_words)" "make room, or make the file system writable, then run again"
  checked=1
  validate "$try" && rm -f "$try" && return
  words=$verdict
  validate "$path" && undo "the new configuration is not valid: $words" "nothing was changed; run gpunode plan --diff and report this"
  rm -f "$try"
  say note "the daemon's own check refuses the configuration before and after the change alike: $words"
}

write_all() {
  while IFS=$TAB read -r n action before _ mode made path; do
    if [ "$action" = remove ]; then
      rm -f "$path" 2>>"$log" || undo "cannot remove $path: $(last_words)" "mend that, then run again"
      flush "$(dirname "$path")"
      continue
    fi
    [ "$made" = - ] || (umask 022 && mkdir -p "$(dirname "$path")") 2>>"$log" || undo "cannot create $(dirname "$path"): $(last_words)" "mend that, then run again"
    old=$path
    [ "$before" != absent ] || old=-
    put "$GPUNODE_IN/data.$n" "$old" "$path" "$mode" "$n" || undo "cannot write $path: $(last_words)" "make room, or make the file system writable, then run again"
  done <"$backup/plan"
}

[ -e "$GPUNODE_IN/changes" ] || : >"$GPUNODE_IN/changes"
need_root
checking || lock
recover
compare
if [ ! -s "$GPUNODE_IN/.todo" ]; then
  [ "$recovered" = 0 ] || finish changed "an interrupted change was finished or undone"
  finish unchanged "every file is as it should be"
fi
checking && changed "$(grep -c . "$GPUNODE_IN/.todo") file(s) would change"
keep
told=''
try_beside
write_all
[ "$checked" = 1 ] || validate "$config" || undo "the new configuration is not valid: $verdict" "nothing was restarted; run gpunode plan --diff and report this"
if [ -n "$unit" ]; then
  if unit_running; then
    told=1
    tell || undo "$illness with the new configuration: $(unit_words)" "the files are as they were; journalctl -u $unit tells more"
  else
    say note "$unit does not run: the change counts from its next start on"
  fi
fi
journal files 'done'
changed "$(grep -c . "$backup/plan") file(s) changed${told:+, $unit ${verb}ed}"
