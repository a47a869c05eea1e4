# shellcheck shell=sh
# What packages and their scripts make beside files of their own, and leave when they go.  Stands behind common.sh, before
# packages.sh, which keeps in .beside what was there before.

# beside: lines KIND NAME of what package scripts make and leave behind: users, groups, folders of kernels, initramfs,
# files below /etc
beside() {
  sed 's/^\([^:]*\):.*/user \1/' /etc/passwd
  sed 's/^\([^:]*\):.*/group \1/' /etc/group
  for tree in /lib/modules/*; do [ ! -d "$tree" ] || echo "kernel ${tree##*/}"; done
  for image in /boot/init*; do [ ! -f "$image" ] || echo "initramfs $image"; done
  find /etc -xdev -type d | sed 's/^/folder /'
  find /etc -xdev -type f | sed 's/^/file /'
}

# came_along: what of that is new, in the journal
came_along() {
  [ -e "$GPUNODE_IN/.beside" ] || return 0
  beside >"$GPUNODE_IN/.beside.after"
  awk 'FILENAME == ARGV[1] { before[$0]; next } !($0 in before)' "$GPUNODE_IN/.beside" "$GPUNODE_IN/.beside.after" >"$GPUNODE_IN/.new"
  grep -E '^(user|group|kernel|initramfs) ' "$GPUNODE_IN/.new" | while read -r kind name; do prior "$kind" "$name" absent present; done
  sed -n 's/^folder //p' "$GPUNODE_IN/.new" >"$GPUNODE_IN/.folders"
  sed -n 's/^file //p' "$GPUNODE_IN/.new" >"$GPUNODE_IN/.files"
  [ ! -s "$GPUNODE_IN/.files" ] || remember_made
}

# remember_made: a record of the files that packages and their scripts have put below /etc
remember_made() {
  was=$journal_id list='' n=0
  journal_id=$(date -u +%Y%m%dT%H%M%SZ)-files-$(printf '%06d' "$(wc -l <"$GPUNODE_STATE/journal.jsonl")")
  made=$GPUNODE_STATE/backup/$journal_id
  (umask 077 && mkdir -p "$made") || return
  while IFS= read -r path; do
    sum=$(sha256sum <"$path") && n=$((n + 1)) top=- folder=$(dirname "$path")
    while grep -Fqx "$folder" "$GPUNODE_IN/.folders"; do top=$folder folder=$(dirname "$folder"); done
    printf '%s\twrite\tabsent\t%s\t0644\t-\t%s\t%s\n' "$n" "${sum%% *}" "$top" "$path" >>"$made/plan"
    list="$list,{\"path\":$(json_text "$path"),\"before\":\"absent\",\"after\":\"${sum%% *}\"}"
  done <"$GPUNODE_IN/.files"
  journal files 'done' ",\"by\":\"packages\",\"files\":[${list#,}],\"unit\":\"\""
  journal_id=$was
}
