# shellcheck shell=sh
# shellcheck disable=SC2154  # $log is that of packages.sh
# What packages and their scripts make in addition to files of their own, and leave when they go.  Stands behind common.sh, before
# packages.sh, which keeps in .beside what was there before.

CDI=/var/run/cdi/nvidia.yaml # of nvidia-cdi-refresh
UNITS=/etc/systemd/system

# gpu_units: lines `runs UNIT` of NVIDIA's units; package scripts start them, and stop them.  One word for each, as unit_runs has it.
gpu_units() {
  # shellcheck disable=SC2046,SC2086 # names
  ! have systemctl || systemctl is-active $(printf '%s.service ' $GPU_UNITS) 2>/dev/null |
    awk -v units="$GPU_UNITS" 'BEGIN { split(units, unit) } /^(active|activating|reloading)$/ { print "runs " unit[NR] ".service" }'
}

# list_side_effects FILE: lines KIND NAME of what package scripts make and leave behind: users, groups, folders of kernels, initramfs,
# files below /etc, links by which units are enabled; and which units run.  The file is there when the list is whole: what is missing in it would pass for new.
list_side_effects() {
  {
    sed 's/^\([^:]*\):.*/user \1/' /etc/passwd && sed 's/^\([^:]*\):.*/group \1/' /etc/group &&
      for tree in /lib/modules/*; do [ ! -d "$tree" ] || echo "kernel ${tree##*/}"; done &&
      for image in /boot/init*; do [ ! -f "$image" ] || echo "initramfs $image"; done &&
      if [ -e "$CDI" ]; then echo "cdi $CDI"; fi &&
      gpu_units &&
      if [ -d "$UNITS" ]; then find "$UNITS" -type l -exec printf 'link %s\n' {} +; fi &&
      find /etc -xdev -type d -exec printf 'folder %s\n' {} + && find /etc -xdev -type f -exec printf 'file %s\n' {} + &&
      echo end
  } >"$1.part" 2>>"$log" && mv "$1.part" "$1"
}

# whole_list FILE: nobody was killed while it was made
whole_list() { [ "$(tail -n 1 "$1" 2>/dev/null)" = end ] && grep -qx 'user root' "$1" && grep -qx 'file /etc/passwd' "$1"; }

# runs_only_in FILE OTHER: the units that run in a list, and not in another
runs_only_in() { awk 'NR == FNR { other[$0]; next } /^runs / && !($0 in other) { print $2 }' "$2" "$1"; }

# came_along: what of that is new, in the journal, and which units no longer stand still, or no longer run
came_along() {
  whole_list "$GPUNODE_IN/.beside" && list_side_effects "$GPUNODE_IN/.beside.after" && whole_list "$GPUNODE_IN/.beside.after" || return 0
  awk 'NR == FNR { before[$0]; next } !($0 in before)' "$GPUNODE_IN/.beside" "$GPUNODE_IN/.beside.after" >"$GPUNODE_IN/.new"
  grep -E '^(user|group|kernel|initramfs) ' "$GPUNODE_IN/.new" | while read -r kind name; do prior "$kind" "$name" absent present; done
  sed -n 's/^link \([A-Za-z0-9@:._/-]*\)$/\1/p' "$GPUNODE_IN/.new" | while IFS= read -r name; do prior link "$name" absent "$(readlink "$name")"; done
  # nvidia-cdi-refresh makes it in its own time
  grep -q '^cdi ' "$GPUNODE_IN/.beside" || ! have nvidia-ctk || prior cdi "$CDI" absent present
  runs_only_in "$GPUNODE_IN/.beside.after" "$GPUNODE_IN/.beside" | while read -r unit; do prior active "$unit" inactive active; done
  runs_only_in "$GPUNODE_IN/.beside" "$GPUNODE_IN/.beside.after" | while read -r unit; do prior active "$unit" active inactive; done
  sed -n 's/^folder //p' "$GPUNODE_IN/.new" >"$GPUNODE_IN/.folders"
  sed -n 's/^file //p' "$GPUNODE_IN/.new" >"$GPUNODE_IN/.files"
  [ ! -s "$GPUNODE_IN/.files" ] || remember_made
}

# remember_made: a record of the files that packages and their scripts have put below /etc
remember_made() {
  local id list count folder path sum top up
  id=$(files_id) list='' count=0
  folder=$GPUNODE_STATE/backup/$id
  (umask 077 && mkdir -p "$folder") || return
  while IFS= read -r path; do
    sum=$(hash_of "$path") && count=$((count + 1)) top=- up=$(dirname "$path")
    while grep -Fqx "$up" "$GPUNODE_IN/.folders"; do top=$up up=$(dirname "$up"); done
    printf '%s\twrite\tabsent\t%s\t0644\t-\t%s\t%s\n' "$count" "$sum" "$top" "$path" >>"$folder/plan"
    list="$list,{\"path\":$(json_text "$path"),\"before\":\"absent\",\"after\":\"$sum\"}"
  done <"$GPUNODE_IN/.files"
  record "$id" files 'done' ",\"by\":\"packages\",\"files\":[${list#,}],\"unit\":\"\""
}

# folders_of_old: of packages that go or change, the folders of their files, the deepest first.  rpm leaves those behind
# that no package has as its own; dpkg and pacman take them away.  /usr/src, /opt and the like are the system's.
folders_of_old() {
  case $manager in dnf | zypper) ;; *) return 0 ;; esac
  # shellcheck disable=SC2046 # names
  rpm -ql $(cut -d ' ' -f 2 "$GPUNODE_IN/.would" | cat - "$GPUNODE_IN/.to_remove" | sort -u) 2>/dev/null | awk '
    { while (sub(/\/[^\/]*$/, "") && $0 != "") if (!seen[$0]++ && !/^(\/usr|\/var)?\/[^\/]*$/) print }' | sort -r
}

# remove_folders FILE: those of the list that are empty by now, and nobody's
remove_folders() {
  [ ! -e "$1" ] || while IFS= read -r folder; do
    [ -d "$folder" ] && [ -z "$(find "$folder" -mindepth 1 -print 2>/dev/null | head -n 1)" ] || continue
    rpm -qf "$folder" >/dev/null 2>&1 || rmdir "$folder" 2>>"$log"
  done <"$1"
}
