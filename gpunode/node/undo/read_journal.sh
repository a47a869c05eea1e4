#!/bin/sh
# What gpunode's journal on this node says, and how each thing that it names is now.  Changes nothing.
# Output: core/undo/journal.py; with the request file `brief` (1) the journal alone.  Runs behind common.sh, driver_state.sh and a file
# for each package manager.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
TAB=$(printf '\t')
log=$GPUNODE_IN/.log
: >"$log"

use_proxy() { :; } # nothing is fetched here
taking_back() { :; }

# told KIND FIELD…: one line
told() {
  printf 'recall'
  for field in "$@"; do printf '\t%s' "$field"; done
  echo
}

coded() { [ ! -e "$1" ] || base64 <"$1" | tr -d '\n'; }

# backups: the names of the folders below backup/; one of them says how many lines the journal had when it was made
backups() {
  for folder in "$GPUNODE_STATE"/backup/*/; do
    folder=${folder%/} folder=${folder##*/}
    case $folder in *[!A-Za-z0-9-]*) ;; *) echo "$folder" ;; esac
  done >"$GPUNODE_IN/.backups"
  while read -r folder; do told backup "$folder"; done <"$GPUNODE_IN/.backups"
}

# damage: what stands in the journal beside records that are whole: NUL bytes, lines that were cut off, and lines that no
# gpunode wrote; and whether it is empty
damage() {
  [ -e "$JOURNAL" ] || { told damage missing 1 && return; }
  [ -s "$JOURNAL" ] || told damage empty 1
  nul=$(tr -cd '\000' <"$JOURNAL" | wc -c)
  [ "$nul" = 0 ] || told damage nul "$((nul))"
  tr -d '\000-\010\013-\037\177' <"$JOURNAL" | sed 's/{"v":[0-9]*,"id":"/\n&/g' | awk '
    /^$/ || /^[{].*[}]$/ { next }
    /^[{]"v":/ || /^[{]("(v"?)?)?$/ { torn++; next }
    { garbage++ }
    END { if (torn) print "torn", torn; if (garbage) print "garbage", garbage }' |
    while read -r kind count; do told damage "$kind" "$count"; done
}

# states KIND: the names of what was changed beside files and packages, as `prior` wrote them
states() { sed -n "s/.*\"op\":\"state\".*\"kind\":\"$1\",\"name\":\"\([^\"]*\)\".*/\1/p" "$RECORDS" | sort -u; }

files() {
  for plan in "$GPUNODE_STATE"/backup/*/plan; do
    [ -e "$plan" ] || continue
    id=${plan%/plan} id=${id##*/}
    while IFS=$TAB read -r n _ _ _ _ _ made path; do
      there=gone
      [ ! -e "${plan%/plan}/$n.old" ] || there=kept
      told copy "$id" "$n" "$there" "$made" "$path"
      echo "$path" >>"$GPUNODE_IN/.paths"
    done <"$plan"
    [ ! -s "${plan%plan}after" ] || told follow "$id" "$(coded "${plan%plan}after")" "$(coded "${plan%plan}validate")" "$(coded "${plan%plan}health")"
    [ -e "${plan%plan}undo.json" ] || continue
    told undo "$id" "$(coded "${plan%plan}undo.json")"
    cut -f 8 "$plan" >>"$GPUNODE_IN/.contents"
  done
  sed 's/"path":"/\n&/g' "$RECORDS" | sed -n 's/^"path":"\([^"]*\)".*/\1/p' >>"$GPUNODE_IN/.paths"
  sort -u "$GPUNODE_IN/.contents" | while read -r path; do [ ! -f "$path" ] || told content "$path" "$(coded "$path")"; done
  sort -u "$GPUNODE_IN/.paths" | while read -r path; do
    if [ -e "$path" ]; then sum=$(sha256sum <"$path") && told file "$path" "${sum%% *}"; else told file "$path" absent; fi
  done
}

services() {
  for unit in $(states enabled); do told enabled "$unit" "$(systemctl is-enabled "$unit" 2>/dev/null || :)"; done
  for unit in $(states active); do
    case $(systemctl is-active "$unit" 2>/dev/null) in active | activating | reloading) told active "$unit" active ;; *) told active "$unit" inactive ;; esac
  done
}

kernel() {
  # with those that a boot may load, or leave out, without any record
  for name in $(printf '%s\n' nvidia nouveau nova_core "$(states module)" | sort -u); do
    if [ -d "/sys/module/$name" ]; then told module "$name" loaded; else told module "$name" absent; fi
  done
  for key in $(states sysctl); do told sysctl "$key" "$(cat "/proc/sys/$(printf '%s' "$key" | tr . /)" 2>/dev/null)"; done
  for path in $(states link); do told link "$path" "$(readlink "$path" || echo absent)"; done
  for initrd in $(states initramfs); do if [ -e "$initrd" ]; then told initramfs "$initrd" present; else told initramfs "$initrd" absent; fi; done
}

# old_initramfs: whether one is older than a folder whose files go into it: something in there was put back, or went
old_initramfs() {
  for image in /boot/initrd.img-* /boot/initramfs-*.img /boot/initrd-*; do
    [ -e "$image" ] || continue
    [ -z "$(find /etc/modprobe.d /etc/modules-load.d /etc/dracut.conf.d /etc/initramfs-tools -type d -newer "$image" 2>/dev/null | head -n 1)" ] || return 0
  done
  return 1
}

# accounts and folders of kernels
beside() {
  for name in $(states user); do if id "$name" >/dev/null 2>&1; then told user "$name" present; else told user "$name" absent; fi; done
  for name in $(states group); do if grep -q "^$name:" /etc/group; then told group "$name" present; else told group "$name" absent; fi; done
  for name in $(states kernel); do if [ -d "/lib/modules/$name" ]; then told kernel "$name" present; else told kernel "$name" absent; fi; done
}

# what NVIDIA's installers put there, beside the package manager
runfiles() {
  for name in $(states runfile); do
    case $name in
      driver) tool=$(command -v nvidia-uninstall || command -v nvidia-installer) ;;
      *) tool=/usr/local/$name/bin/cuda-uninstaller ;;
    esac
    if [ -n "$tool" ] && [ -x "$tool" ]; then told runfile "$name" present; else told runfile "$name" absent; fi
  done
}

alternatives() {
  for name in $(states alternative); do
    told alternative "$name" "$(alternative "$name")"
  done
}

streams() {
  for module in $(states stream); do
    if [ -e "/etc/dnf/modules.d/$module.module" ]; then told stream "$module" "$(dnf_stream "$module")"; else told stream "$module" absent; fi
  done
}

# Of all packages only those that the journal names, and what hangs on them.
# sets: manager
packages() {
  manager=$(package_manager)
  [ -n "$manager" ] || return 0
  told manager "$manager"
  sed -n '/"op":"packages"/p' "$RECORDS" | sed 's/"name":"/\n&/g' | sed -n 's/^"name":"\([^"]*\)".*/\1/p' | sort -u >"$GPUNODE_IN/.names"
  manager_ installed | while read -r name version state; do told package "$name" "$version" "$state"; done
  manager_ marks | while read -r kind name; do told mark "$kind $name"; done
  [ -s "$GPUNODE_IN/.names" ] || return 0
  # shellcheck disable=SC2046 # names
  manager_ remnants $(cat "$GPUNODE_IN/.names") | while read -r name; do told remnant "$name"; done
  manager_ depends | sort -u >"$GPUNODE_IN/.depends"
  awk 'FILENAME == ARGV[1] { ours[$1]; next } $1 == "gives" && $2 in ours { print $3 }' "$GPUNODE_IN/.names" "$GPUNODE_IN/.depends" |
    sort -u >"$GPUNODE_IN/.words"
  awk 'FILENAME == ARGV[1] { word[$1]; next }
    { n = split($3, any, "|"); for (i = 1; i <= n; i++) if (any[i] in word) { print; next } }' "$GPUNODE_IN/.words" "$GPUNODE_IN/.depends" |
    while read -r op name word; do told "$op" "$name" "$word"; done
  # shellcheck disable=SC2046 # names
  manager_ edited $(cat "$GPUNODE_IN/.names") | while read -r name path; do told edited "$name" "$path"; done
  # shellcheck disable=SC2046
  set -- $(sed -n '/"op":"packages"/p' "$RECORDS" | sed -n 's/.*\("changed":\[.*\),"held".*/\1/p' | sed 's/"name":"/\n&/g' | sed -n 's/^"name":"\([^"]*\)".*/\1/p' | sort -u)
  [ $# = 0 ] || manager_ available "$@" | sort -u | while read -r name version; do told available "$name" "$version"; done
}

JOURNAL=$GPUNODE_STATE/journal.jsonl
RECORDS=$GPUNODE_IN/.records # those that are whole
need_root
backups
[ -e "$JOURNAL" ] || [ -s "$GPUNODE_IN/.backups" ] || finish unchanged "gpunode has changed nothing on this node"
journal_lines >"$RECORDS"
while IFS= read -r line; do told journal "$line"; done <"$RECORDS"
damage
[ -z "$(requested brief)" ] || finish unchanged "the journal of this node"
: >"$GPUNODE_IN/.paths"
: >"$GPUNODE_IN/.contents"
files
services
kernel
beside
runfiles
alternatives
streams
packages
told driver "$(module_version)"
[ -z "$(module_version)" ] || as_installed "$(userspace_version)" || told stale
! old_initramfs || told old_initramfs
finish unchanged "the journal of this node and what it speaks of"
