# shellcheck shell=sh
# shellcheck disable=SC2154  # variables of packages.sh
# What a package transaction has changed: kept while it runs, in the journal, and printed.  Stands behind package_marks.sh, before
# packages.sh.

# what_changed: what differs between .before and .after, as lines `added|removed NAME VERSION`, `changed NAME FROM TO`,
# `held NAME` and `unheld NAME[ removed]`.  Of names with several versions nothing: kernels also stand under a name with theirs.
what_changed() {
  for list in before after; do cut -d ' ' -f 1 "$GPUNODE_IN/.$list" | sort | uniq -d; done >"$GPUNODE_IN/.several"
  awk '
    FILENAME == ARGV[1] { several[$1]; next }
    $1 in several { next }
    FILENAME == ARGV[2] { before[$1] = $2; hold[$1] = $3; next }
    { after[$1] = 1 }
    !($1 in before) { print "added", $1, $2 }
    ($1 in before) && before[$1] != $2 { print "changed", $1, before[$1], $2 }
    $3 == "hold" && hold[$1] != "hold" { print "held", $1 }
    $3 != "hold" && hold[$1] == "hold" { print "unheld", $1 }
    END {
      for (name in before) if (!(name in after)) {
        print "removed", name, before[name]
        if (hold[name] == "hold") print "unheld", name, "removed"
      }
    }' "$GPUNODE_IN/.several" "$GPUNODE_IN/.before" "$GPUNODE_IN/.after"
}

# changes_json: that, and the marks, as members of a journal record: the record that an undo needs
changes_json() {
  what_changed | awk '
    /^(un)?held / { item = "\"" $2 "\"" }
    /^(added|removed) / { item = "{\"name\":\"" $2 "\",\"version\":\"" $3 "\"}" }
    /^changed / { item = "{\"name\":\"" $2 "\",\"from\":\"" $3 "\",\"to\":\"" $4 "\"}" }
    { list[$1] = list[$1] (list[$1] == "" ? "" : ",") item }
    END {
      count = split("added changed removed held unheld", key, " ")
      for (i = 1; i <= count; i++) printf ",\"%s\":[%s]", key[i], list[key[i]]
    }'
  manager_ marks >"$GPUNODE_IN/.marks.after"
  printf ',"marks":%s,"unmarked":%s' "$(more_marks | json_list)" "$(fewer_marks | json_list)"
}

# remember_packages, forget: what was there before, for a later run that finds the transaction interrupted
remember_packages() {
  journal_id=$(new_id "packages-$$")
  kept=$GPUNODE_STATE/backup/$journal_id
  (umask 077 && mkdir -p "$kept") || finish failed "cannot write $kept" "make room on the file system of /var"
  list_side_effects "$GPUNODE_IN/.beside" || finish failed "cannot list what is below /etc: $(last_words "$log")" "see the log; nothing was changed"
  for name in before marks would beside; do
    cp "$GPUNODE_IN/.$name" "$kept/$name" || finish failed "cannot keep what was installed in $kept" "make room on the file system of /var"
  done
}

forget() { rm -rf "$GPUNODE_STATE/backup/${journal_id:?}"; }

# close_packages: gives interrupted transactions their outcome: what they meant to change, and now is another way
close_packages() {
  for journal_id in $(unfinished packages); do
    kept=$GPUNODE_STATE/backup/$journal_id more=
    if [ -e "$kept/would" ]; then
      for list in before after; do
        if [ "$list" = after ]; then manager_ installed; else cat "$kept/before"; fi |
          awk 'FILENAME == ARGV[1] { meant[$2]; next } { plain = $1; sub(/-[0-9].*/, "", plain) } $1 in meant || plain in meant' "$kept/would" - >"$GPUNODE_IN/.$list"
      done
      remove_folders "$kept/folders"
      cp "$kept/marks" "$GPUNODE_IN/.marks"
      cp "$kept/beside" "$GPUNODE_IN/.beside" 2>>"$log"
      came_along
      more=$(changes_json)
    fi
    journal packages failed ",\"message\":\"interrupted; what had begun was finished by a later run\"$more"
    rm -rf "$kept"
  done
  journal_id=''
  rm -f "$GPUNODE_IN/.marks" "$GPUNODE_IN/.beside"
}

# say_packages: the lines of differences, list_dry_run and say_changes, such as VERB NAME VERSION, as things that change
say_packages() {
  local verb name line of was now
  while read -r verb name line; do
    of=$name was='' now=''
    case $verb in
      install*) now=$line ;;
      remove*) was=$line ;;
      change*) was=${line#from } was=${was%% *} now=${line##* } ;;
      finish | forget | reset | enable) of=${line##* } ;;
    esac
    changed package "${of:-$name}" "$verb $name${line:+ $line}" "$was" "$now"
  done
}

# say_built VERB: lines MODULE VERSION KERNEL
say_built() {
  local module version kernel
  while read -r module version kernel; do changed module "$module" "$1 $module $version for kernel $kernel"; done
}

say_changes() {
  what_changed | sed '/^unheld .* removed$/d; s/^added/installed/; s/^\(changed [^ ]*\) \([^ ]*\)/\1 from \2 to/' | sort | say_packages
  requested streams | while read -r module stream; do
    [ ! -e "$GPUNODE_IN/.was.$module" ] ||
      if [ "$stream" = - ]; then changed package "$module" "reset module $module"; else changed package "$module" "enabled stream $stream of module $module"; fi
  done
}
