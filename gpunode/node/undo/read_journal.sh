#!/bin/sh
# What gpunode's journal on this node says, and how each thing that it names is now.  Changes nothing.
# Request and output: core/undo/journal.py, which has read the names in the request out of the journal; without a request
# the journal alone.  Runs behind common.sh, driver_state.sh and a file for each package manager.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin

use_proxy() { :; } # nothing is fetched here
taking_back() { :; }

# report KIND FIELD…: one line
report() {
  local field
  printf 'recall'
  for field in "$@"; do printf '\t%s' "$field"; done
  echo
}

coded() { [ ! -e "$1" ] || base64 <"$1" | tr -d '\n'; }

# backups: the names of the folders below backup/; one of them says how many lines the journal had when it was made
backups() {
  local folder
  for folder in "$GPUNODE_STATE"/backup/*/; do
    folder=${folder%/} folder=${folder##*/}
    case $folder in *[!A-Za-z0-9-]*) ;; *) echo "$folder" ;; esac
  done >"$GPUNODE_IN/.backups"
  while read -r folder; do report backup "$folder"; done <"$GPUNODE_IN/.backups"
}

# damage: what is in the journal other than whole records: NUL bytes, lines that were cut off, and lines that no
# gpunode wrote; and whether it is empty
damage() {
  local nul
  [ -e "$JOURNAL" ] || { report damage missing 1 && return; }
  [ -s "$JOURNAL" ] || report damage empty 1
  nul=$(tr -cd '\000' <"$JOURNAL" | wc -c)
  [ "$nul" = 0 ] || report damage nul "$((nul))"
  journal_text | awk '
    /^$/ || /^[{].*[}]$/ { next }
    /^[{]"v":/ || /^[{]("(v"?)?)?$/ { torn++; next }
    { garbage++ }
    END { if (torn) print "torn", torn; if (garbage) print "garbage", garbage }' |
    while read -r kind count; do report damage "$kind" "$count"; done
}

files() {
  local plan id there n made path config binary
  for plan in "$GPUNODE_STATE"/backup/*/plan; do
    [ -e "$plan" ] || continue
    id=${plan%/plan} id=${id##*/}
    while IFS=$TAB read -r n _ _ _ _ _ made path; do
      there=gone
      [ ! -e "${plan%/plan}/$n.old" ] || there=kept
      report copy "$id" "$n" "$there" "$made" "$path"
      echo "$path" >>"$GPUNODE_IN/.paths"
    done <"$plan"
    [ ! -s "${plan%plan}after" ] || report follow "$id" "$(coded "${plan%plan}after")" "$(coded "${plan%plan}validate")" "$(coded "${plan%plan}health")"
    [ -e "${plan%plan}undo.json" ] || continue
    report undo "$id" "$(coded "${plan%plan}undo.json")"
    cut -f 8 "$plan" >>"$GPUNODE_IN/.contents"
    sed -n 's/^config //p' "${plan%plan}after" >>"$GPUNODE_IN/.configs"
    head -n 1 "${plan%plan}validate" >>"$GPUNODE_IN/.binaries"
    # of the files that were links at that time: where they lead now
    grep -o '"/[^"\\]*": {"created"' "${plan%plan}undo.json" | sed 's/^"//; s/": {"created"$//' | while IFS= read -r path; do
      ! cut -f 8 "$plan" | grep -Fxq "$path" || continue
      report leads "$path" "$(readlink -f "$path" || echo /)"
      echo "$path" | tee -a "$GPUNODE_IN/.paths" >>"$GPUNODE_IN/.contents"
    done
  done
  # all that the engines read, whoever wrote it
  { requested configs && cat "$GPUNODE_IN/.configs"; } | sort -u | while IFS= read -r config; do
    { echo "$config" && containerd_imports "$config" 3 && find "$config.d/" -type f; } 2>/dev/null
  done | sed -n '/^[A-Za-z0-9._@+:,=~/-]*$/p' >>"$GPUNODE_IN/.contents"
  sort -u "$GPUNODE_IN/.binaries" | while IFS= read -r binary; do
    report engine "$binary" "$("$binary" --version 2>/dev/null | head -n 1 | tr -cd '[:alnum:] ._+~/-')."
  done
  requested paths >>"$GPUNODE_IN/.paths"
  sort -u "$GPUNODE_IN/.contents" | while read -r path; do [ ! -f "$path" ] || report content "$path" "$(coded "$path")"; done
  sort -u "$GPUNODE_IN/.paths" | while read -r path; do
    sum=$(hash_of "$path") && report file "$path" "$sum"
  done
}

MOST_OF_A_FILE=262144 # bytes; a larger one that two have written is not taken apart

# versions: of files that somebody else has written between gpunode's changes or since, all that is known of their bytes
versions() {
  local plan id path n kind copy
  for plan in "$GPUNODE_STATE"/backup/*/plan; do
    id=${plan%/plan} id=${id##*/}
    [ ! -e "$plan" ] || awk -F '\t' -v id="$id" -v at="${id##*-files-}" '{ print at + 0 "\t" id "\t" $1 "\t" $3 "\t" ($2 == "renew" ? "any" : $4) "\t" $8 }' "$plan"
  done | sort -t "$TAB" -k 1,1n >"$GPUNODE_IN/.plans"
  cut -f 6 "$GPUNODE_IN/.plans" | sort -u | while IFS= read -r path; do
    sum=$(hash_of "$path") && printf '%s\t%s\n' "$sum" "$path"
  done >"$GPUNODE_IN/.present"
  awk -F '\t' '
    FILENAME == ARGV[1] { now[$2] = $1; next }
    $6 in last && last[$6] != "any" && last[$6] != $4 { theirs[$6] }
    { last[$6] = $5; row[++n] = $2 "\t" $3 "\t" $6; path[n] = $6 }
    END {
      for (one in last) if (last[one] != "any" && last[one] != now[one]) theirs[one]
      for (i = 1; i <= n; i++) if (path[i] in theirs) print row[i]
    }' "$GPUNODE_IN/.present" "$GPUNODE_IN/.plans" >"$GPUNODE_IN/.theirs"
  while IFS=$TAB read -r id n path; do
    for kind in old new; do
      copy=$GPUNODE_STATE/backup/$id/$n.$kind
      [ -f "$copy" ] && [ "$(wc -c <"$copy")" -le "$MOST_OF_A_FILE" ] || continue
      report version "$id/$n.$kind" "$path" "$(coded "$copy")"
    done
  done <"$GPUNODE_IN/.theirs"
  cut -f 3 "$GPUNODE_IN/.theirs" | sort -u >"$GPUNODE_IN/.paths_of_two"
  awk 'FILENAME == ARGV[1] { sent[$0]; next } !($0 in sent)' "$GPUNODE_IN/.contents" "$GPUNODE_IN/.paths_of_two" | while IFS= read -r path; do
    [ ! -f "$path" ] || [ "$(wc -c <"$path")" -gt "$MOST_OF_A_FILE" ] || report content "$path" "$(coded "$path")"
  done
}

# ---------------------------------------------------------------- how other things are now, one function for each kind

present() { if "$@" >/dev/null 2>&1; then echo present; else echo absent; fi; }

now_enabled() { systemctl is-enabled "$1" 2>/dev/null; }
now_mask() { case $(now_enabled "$1") in masked*) echo masked ;; *) echo absent ;; esac }
now_active() { if unit_runs "$1"; then echo active; else echo inactive; fi; }
now_module() { if [ -d "/sys/module/$1" ]; then echo loaded; else echo absent; fi; }
now_sysctl() { setting "$1"; }
now_argument() { argument "$1"; }
now_ecc() { ecc_next "$1"; }
now_link() { readlink "$1" || echo absent; }
now_cdi() { present test -e "$1"; }
now_initramfs() { present test -e "$1"; }
now_user() { present id "$1"; }
now_group() {
  local members # others than the user whose own it is
  members=$(awk -F : -v name="$1" '$1 == name { print $4 }' /etc/group | tr , '\n' | grep -Fxv "$1" | paste -s -d , -)
  if [ -n "$members" ]; then echo "members $members"; else present grep "^$1:" /etc/group; fi
}
now_kernel() { present test -d "/lib/modules/$1"; }
now_runfile() { # what NVIDIA's installers put there, without the package manager
  case $1 in
    driver) present test -x "$(command -v nvidia-uninstall || command -v nvidia-installer)" ;;
    *) present test -x "/usr/local/$1/bin/cuda-uninstaller" ;;
  esac
}
now_alternative() { alternative "$1"; }
now_stream() { if [ -e "/etc/dnf/modules.d/$1.module" ]; then dnf_stream "$1"; else echo absent; fi; }
# the instances of a GPU, and ` waits` where a reboot changes the mode; of one that no driver runs nothing is known
now_mig() {
  [ -n "$(module_version)" ] && { [ -e "$GPUNODE_IN/.gpus" ] || gpus; } || return
  case $(ask "$1" mig.mode.current):$(ask "$1" mig.mode.pending) in
    Enabled:Enabled | Disabled:Disabled) mig_layout "$1" ;;
    Enabled:Disabled | Disabled:Enabled) echo "$(mig_layout "$1") waits" ;;
  esac
}

# states: of what was changed other than files and packages, and of modules that a boot may load, or leave out, without
# any record
# calls: now_$1
states() {
  local kind name now
  { requested states && printf "module$TAB%s\n" nvidia nouveau nova_core; } | while IFS=$TAB read -r kind name; do
    now=$("now_$kind" "$name" </dev/null)
    [ "$kind$now" = mig ] || report "$kind" "$name" "$now"
  done
}

# old_initramfs: whether one is older than a folder whose files go into it: something in there was put back, or went
old_initramfs() {
  local image
  for image in /boot/initrd.img-* /boot/initramfs-*.img /boot/initrd-*; do
    [ -e "$image" ] || continue
    [ -z "$(find /etc/modprobe.d /etc/modules-load.d /etc/dracut.conf.d /etc/initramfs-tools -type d -newer "$image" 2>/dev/null | head -n 1)" ] || return 0
  done
  return 1
}

# Of all packages only those that the journal names, and what hangs on them.
packages() {
  manager=$(package_manager)
  [ -n "$manager" ] || return 0
  report manager "$manager"
  requested packages >"$GPUNODE_IN/.names"
  manager_ installed | while read -r name version state; do report package "$name" "$version" "$state"; done
  manager_ marks | while read -r kind name; do report mark "$kind $name"; done
  [ -s "$GPUNODE_IN/.names" ] || return 0
  # shellcheck disable=SC2046 # names
  manager_ remnants $(cat "$GPUNODE_IN/.names") | while read -r name; do report remnant "$name"; done
  manager_ depends | sort -u >"$GPUNODE_IN/.depends"
  awk 'FILENAME == ARGV[1] { ours[$1]; next } $1 == "gives" && $2 in ours { print $3 }' "$GPUNODE_IN/.names" "$GPUNODE_IN/.depends" |
    sort -u >"$GPUNODE_IN/.words"
  awk 'FILENAME == ARGV[1] { word[$1]; next }
    { n = split($3, any, "|"); for (i = 1; i <= n; i++) if (any[i] in word) { print; next } }' "$GPUNODE_IN/.words" "$GPUNODE_IN/.depends" |
    while read -r op name word; do report "$op" "$name" "$word"; done
  # shellcheck disable=SC2046 # names
  manager_ edited $(cat "$GPUNODE_IN/.names") | while read -r name path; do report edited "$name" "$path"; done
  { requested states | cut -f 2 && requested paths; } | sort -u >"$GPUNODE_IN/.things"
  # shellcheck disable=SC2046 # names
  manager_ texts $(cat "$GPUNODE_IN/.names") | awk '
    FILENAME == ARGV[1] { last = $0; sub(/.*\//, "", last); word[$0] = last; next }
    /^@@/ { name = substr($0, 3); next }
    { for (thing in word) if (!((thing, name) in seen) && index($0, word[thing])) { seen[thing, name]; print name "\t" thing } }' "$GPUNODE_IN/.things" - |
    while IFS=$TAB read -r name path; do report mention "$name" "$path"; done
  manager_ unchanged "$GPUNODE_IN/.paths" | while read -r name path; do report unchanged "$name" "$path"; done
  # shellcheck disable=SC2046 # names
  set -- $(requested changed)
  [ $# = 0 ] || manager_ available "$@" | sort -u | while read -r name version; do report available "$name" "$version"; done
}

JOURNAL=$GPUNODE_STATE/journal.jsonl
need_root
backups
[ -e "$JOURNAL" ] || [ -s "$GPUNODE_IN/.backups" ] || finish unchanged "gpunode has changed nothing on this node"
journal_lines >"$GPUNODE_IN/.records"
while IFS= read -r line; do report journal "$line"; done <"$GPUNODE_IN/.records"
damage
[ -e "$GPUNODE_IN/states" ] || finish unchanged "the journal of this node"
: >"$GPUNODE_IN/.paths"
: >"$GPUNODE_IN/.contents"
: >"$GPUNODE_IN/.configs"
: >"$GPUNODE_IN/.binaries"
files
versions
states
packages
report driver "$(module_version)"
[ -z "$(module_version)" ] || as_installed "$(userspace_version)" || report stale
! old_initramfs || report old_initramfs
finish unchanged "the journal of this node and what it speaks of"
