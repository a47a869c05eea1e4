# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables of the program that this is a part of
# The one writer of files on a node: all files of a request as one transaction.  Behind common.sh and file.sh, before
# commit.sh, cdi.sh, mig.sh and mps.sh.  Request: `changes` and data.N (core/edits/commit.py).
#
# State of a transaction: $GPUNODE_STATE/backup/ID/ with N.old (cp -a of a file that was there), N.new (its new bytes),
# `foreign` (where one of N.old is not what gpunode had left there), `plan` (below), `after`, `validate` and `health` (what
# follows the writes), `running` (containers), `notified` before the service is restarted, `took` after it, `settling`
# where a later run proves that it stays up; and what outlives it: undo.json, how the edit is undone.  The journal's intent
# is written after the backup and before the first write; so an intent without outcome finds what it needs to be finished
# or undone.
# Lines of `plan`: N, write, renew, restore or remove, hash before ("absent"), hash after, mode of a new file, file it is
# like, folder to create, path; separated by tabs, and the path is where symbolic links lead.  Of what is renewed other
# programs write newer versions, so that the journal has `any` for its hash after.

KEEP=20 # finished transactions whose backups stay

# ---------------------------------------------------------------- undo

# restore: every file of the transaction as it was, what names the others first, so that nothing is named that is not
# there; files that somebody else changed since are left and named
restore() {
  not_restored='' restored=yes
  sort -t "$TAB" -k 1,1nr "$backup/plan" >"$GPUNODE_IN/.back"
  while IFS=$TAB read -r n action before after mode _ made path; do
    new=$(temporary "$path" "$n")
    rm -f "$new"
    now=$(hash_of "$path")
    if [ "$now" = "$before" ] || [ "$path" = "${foreign:-}" ]; then
      :
    elif [ "$now" != "$after" ]; then
      [ "$action" = renew ] || not_restored="$not_restored $path"
    elif [ "$before" = absent ]; then
      rm -f "$path" 2>>"$log" && flush "$(dirname "$path")" || not_restored="$not_restored $path"
    else
      old=$path # it has the owner and the labels; a backup on another file system may not
      [ -e "$old" ] || old=$backup/$n.old
      (umask 022 && mkdir -p "$(dirname "$path")") 2>>"$log"
      stage "$backup/$n.old" "$old" "$new" "$mode" - && touch -r "$backup/$n.old" "$new" &&
        mv -f "$new" "$path" 2>>"$log" && flush "$(dirname "$path")" || not_restored="$not_restored $path"
    fi
    [ "$made" = - ] || prune "$(dirname "$path")" "$made"
  done <"$GPUNODE_IN/.back"
  [ -z "$not_restored" ]
}

# prune FOLDER TOP: removes the empty folders from FOLDER up to TOP, which the transaction created
prune() {
  local folder
  folder=$1
  while [ "${#folder}" -ge "${#2}" ] && rmdir "$folder" 2>/dev/null; do folder=$(dirname "$folder"); done
}

# records FROM TO: the undo records that the edit has used up, and its own, get another name; again does no harm
records() {
  local id
  while read -r id; do
    [ ! -e "$GPUNODE_STATE/backup/$id/$1" ] || mv -f "$GPUNODE_STATE/backup/$id/$1" "$GPUNODE_STATE/backup/$id/$2" 2>>"$log"
  done <"$backup/used"
}

# accepted [,"MORE":JSON]: the transaction stands; its undo record counts from now on
accepted() {
  local path made
  [ ! -s "$backup/undo" ] || mv -f "$backup/undo" "$backup/undo.json" 2>>"$log" || say note "its undo record is not kept: $(last_reason)"
  records undo.json undo.used.json
  sed -n "s/^[0-9]*${TAB}remove${TAB}.*${TAB}//p" "$backup/plan" | while IFS= read -r path; do
    made=$(folder_made "$path")
    [ -z "$made" ] || prune "$(dirname "$path")" "$made"
  done
  # a link to a file that goes would lead nowhere
  [ ! -e "$GPUNODE_IN/.links" ] || while IFS= read -r path; do [ -e "$path" ] || rm -f "$path"; done <"$GPUNODE_IN/.links"
  journal files 'done' "${1:-}"
}

# folder_made PATH: the topmost folder above it that a transaction has created
folder_made() {
  cat "$GPUNODE_STATE"/backup/*/plan | of=$1 awk -F '\t' '
    index(ENVIRON["of"], $7 "/") == 1 && (top == "" || length($7) < length(top)) { top = $7 }
    END { print top }'
}

# rejected PHASE [,"MORE":JSON]: it does not
rejected() {
  rm -f "$backup/undo" "$backup/undo.json"
  records undo.used.json undo.json
  journal files "$@"
}

# still_unhealthy: adds to $message and $advice of `undo` that the files which were put back do not help
still_unhealthy() {
  local words
  words=$(unit_errors)
  case $message in *"$words"*) words='' ;; esac
  if [ "$phase" = failed ] || [ "$verb" = await ] || unit_active; then
    message="$message; and after the files were put back: $health_error"
  else
    message="$message; the former files were put back, and $unit does not start with them either: the fault was there before, and it is stopped now"
    advice="correct what it names, then run again; $advice"
  fi
  message="$message${words:+: $words}"
}

# undo WHY FIX [STATUS]: put all back, bring the service back, and end
undo() {
  local advice message phase outcome
  message=$1 advice=$2 outcome=${3:-rolled_back} phase=undone
  restore || {
    outcome=failed phase=failed
    message="$message; could not restore$not_restored: $(last_reason)"
    advice="put back by hand from $backup, then restart ${unit:-what reads it}"
  }
  [ ! -e "$backup/notified" ] || notify_unit || still_unhealthy
  rejected "$phase" ",\"message\":$(json_text "$message")"
  cat "$log"
  finish "$outcome" "$message" "$advice"
}

# ---------------------------------------------------------------- a new transaction

# stale PATH: the caller may read the files again and ask again
stale() {
  say stale "$1"
  fix="run again: it was changed by another program in the meantime"
}

# compare: every file that was read is still what it was; lists in .todo what is to be done
compare() {
  : >"$GPUNODE_IN/.todo"
  : >"$GPUNODE_IN/.announced"
  while IFS=$TAB read -r n action mode expect like path; do
    resolve "$path" || finish refused "$trouble" "$fix"
    before=$(hash_of "$target") || finish failed "$path cannot be read" "run as root; if that does not help, the disk fails"
    if [ "$expect" != any ] && [ "$expect" != "$before" ]; then
      stale "$path"
      finish refused "$path changed since it was read" "$fix"
    fi
    case $action in
      read) continue ;;
      remove) after=absent ;;
      restore) # as an earlier transaction found it: `like` names its copy
        earlier=$GPUNODE_STATE/backup/$like
        [ -e "$earlier" ] || finish refused "the copy of $path is gone: $earlier" "leave $path as it is, or fix it by hand"
        cp -a "$earlier" "$GPUNODE_IN/data.$n" || finish failed "$earlier cannot be read" "see whether the disk is full, or fails"
        after=$(hash_of "$earlier")
        ;;
      *) after=$(hash_of "$GPUNODE_IN/data.$n") ;;
    esac
    [ "$before" != "$after" ] || continue
    [ "$target" = "$path" ] || say note "$path leads to $target"
    [ "$action" != remove ] || [ ! -L "$path" ] || echo "$path" >>"$GPUNODE_IN/.links"
    made=- folder=$(dirname "$target")
    while [ ! -d "$folder" ]; do made=$folder folder=$(dirname "$folder"); done
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$n" "$action" "$before" "$after" "$mode" "$like" "$made" "$target" >>"$GPUNODE_IN/.todo"
    case $action-$before in
      remove-*) echo "removes $path" ;;
      *-absent) echo "creates $path" ;;
      *) echo "rewrites $path" ;;
    esac >>"$GPUNODE_IN/.announced"
  done <"$GPUNODE_IN/changes"
}

# say_files: what `compare` found
say_files() { while IFS= read -r line; do changed file "${line#* }" "$line"; done <"$GPUNODE_IN/.announced"; }

# keep_backup: copies and plan of what `compare` found.  The journal's lines number the transactions.
keep_backup() {
  begin_journal
  journal_id=$(files_id)
  backup=$GPUNODE_STATE/backup/$journal_id
  { (umask 077 && mkdir -p "$backup") && cp "$GPUNODE_IN/.todo" "$backup/plan"; } 2>>"$log" || no_room
  for name in after validate health used undo; do
    requested $name >"$backup/$name" || no_room
  done
  while IFS=$TAB read -r n action before after _ _ _ path; do
    if [ "$before" != absent ]; then
      copy "$path" "$backup/$n.old" || no_room
      [ "$(hash_of "$backup/$n.old")" = "$before" ] || no_room
      note_labels "$path"
    fi
    [ "$action" != write ] || (umask 077 && cp "$GPUNODE_IN/data.$n" "$backup/$n.new") 2>>"$log" || no_room
    note_foreign "$before" "$path" || no_room
  done <"$backup/plan"
}

# intend: backup and intent are on disk before the first write
intend() {
  local action after before list path
  list=''
  while IFS=$TAB read -r _ action before after _ _ _ path; do
    [ "$action" != renew ] || after=any
    list="$list,{\"path\":$(json_text "$path"),\"before\":\"$before\",\"after\":\"$after\"}"
  done <"$backup/plan"
  flush "$backup"/* "$backup" "$GPUNODE_STATE/backup" "$GPUNODE_STATE" || no_room
  (journal files intent ",\"files\":[${list#,}],\"unit\":$(json_text "$unit")") || {
    rm -rf "$backup" # nothing was touched, and finish has said so
    exit 1
  }
}

no_room() {
  rm -rf "$backup"
  cat "$log"
  finish failed "cannot keep a backup in $GPUNODE_STATE: $(last_reason)" "$(why_not); nothing was changed"
}

# note_foreign HASH PATH: marks the backup where somebody else has written the file since gpunode last did, and the one that
# knows how gpunode had left it: both are of use to an undo, which keeps what that person wrote
note_foreign() {
  local folder last
  last=$(last_of "$2")
  [ -n "$last" ] || return 0
  case ${last#* } in "$1" | any) return 0 ;; esac
  for folder in "$backup" "$GPUNODE_STATE/backup/${last%% *}"; do
    [ ! -d "$folder" ] || : >"$folder/foreign" || return 1
  done 2>>"$log"
}

# last_of PATH: «ID HASH» of the last transaction that wrote the file and stands: what it left there
last_of() {
  journal_lines | of="\"path\":$(json_text "$1"),\"before\":\"" awk '
    match($0, /"id":"[^"]*"/) { id = substr($0, RSTART + 6, RLENGTH - 7) }
    /"op":"files","phase":"undone"/ { undone[id] }
    (at = index($0, ENVIRON["of"])) {
      rest = substr($0, at + length(ENVIRON["of"])); sub(/^[^"]*","after":"/, "", rest); sub(/".*/, "", rest)
      n++; ids[n] = id; after[n] = rest
    }
    END { while (n && ids[n] in undone) n--; if (n) print ids[n], after[n] }'
}

# note_labels PATH: says what busybox's cp does not take along
note_labels() {
  cp --help 2>&1 | grep -qi busybox || return 0
  ! have getfattr || [ -n "$(getfattr -m - "$1" 2>/dev/null)" ] || return 0
  say note "busybox's cp keeps mode and owner of $1, but no ACL and no extended attributes"
}

# stage_all: every new file is ready next to its path, on disk, before the first one is replaced
stage_all() {
  while IFS=$TAB read -r n action before _ mode like made path; do
    [ "$action" != remove ] || continue
    [ "$made" = - ] || (umask 022 && mkdir -p "$(dirname "$path")") 2>>"$log" || undo "cannot create $(dirname "$path"): $(last_reason)" "$(why_not)"
    old=$path
    [ "$before" != absent ] || old=-
    # what is put back has mode and owner of the copy only where no file is: gpunode leaves them, others may have set them
    [ "$action-$old" != restore-- ] || old=$GPUNODE_IN/data.$n
    stage "$GPUNODE_IN/data.$n" "$old" "$(temporary "$path" "$n")" "$mode" "$like" || undo "cannot write $path: $(last_reason)" "$(why_not)"
    [ "$action" != restore ] || touch -r "$GPUNODE_IN/data.$n" "$(temporary "$path" "$n")"
  done <"$backup/plan"
}

install_all() {
  while IFS=$TAB read -r n action before _ _ _ _ path; do
    [ "$action" = renew ] || [ "$(hash_of "$path")" = "$before" ] || {
      foreign=$path
      stale "$path"
      undo "$path changed since it was read" "$fix" refused
    }
    if [ "$action" = remove ]; then
      rm -f "$path" 2>>"$log" || undo "cannot remove $path: $(last_reason)" "$(why_not)"
    else
      mv -f "$(temporary "$path" "$n")" "$path" 2>>"$log" || undo "cannot write $path: $(last_reason)" "$(why_not)"
      if [ "$before" = absent ] && have restorecon; then restorecon "$path" 2>>"$log"; fi
    fi
    flush "$(dirname "$path")" || undo "cannot write $path: $(last_reason)" "$(why_not)"
  done <"$backup/plan"
}

# forget: backups of finished transactions beyond the newest; never one whose undo record is still of use, nor one that
# knows what stood somewhere before gpunode came, what gpunode wrote there last, or what somebody else wrote in between
forget() {
  local backup open
  open=" $(unfinished files | tr '\n' ' ') "
  printf '%s\n' "$GPUNODE_STATE"/backup/*-files-* | awk -v keep="$KEEP" '
    {
      name[NR] = $0
      plan = $0 "/plan"
      while ((getline line <plan) > 0) {
        split(line, column, "\t")
        if (!(column[8] in first)) first[column[8]] = NR
        last[column[8]] = NR
      }
      close(plan)
    }
    END {
      for (path in first) { held[first[path]]; held[last[path]] }
      for (n = 1; n <= NR - keep; n++) if (!(n in held)) print name[n]
    }' | while IFS= read -r backup; do
    case $open in *" ${backup##*/} "*) ;; *) [ -e "$backup/undo.json" ] || [ -e "$backup/foreign" ] || [ -e "$backup/kept" ] || rm -rf "$backup" ;; esac
  done
}

# also ACTION FILE PATH: one more change of the request: `write` or `renew` PATH with the bytes of FILE
also() {
  local n
  n=$(($(requested changes | wc -l)))
  cp "$2" "$GPUNODE_IN/data.$n"
  printf '%s\t%s\t0644\tany\t-\t%s\n' "$n" "$1" "$3" >>"$GPUNODE_IN/changes"
}

# write_files: the changes of the request, as one transaction that nothing is notified of
write_files() {
  local unit
  unit=''
  [ -s "$GPUNODE_IN/changes" ] || return 0
  compare
  checking || [ ! -s "$GPUNODE_IN/.todo" ] || {
    keep_backup
    intend
    stage_all
    install_all
    accepted
    forget
    journal_id=''
  }
  say_files
}
