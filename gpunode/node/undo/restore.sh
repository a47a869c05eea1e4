#!/bin/sh
# Units, links, alternatives, kernel settings, modules and the initramfs as they were before gpunode; and the line in the
# journal that says so.  Request and output: core/undo/requests.py.  Runs behind common.sh, devices.sh and reload.sh.
# shellcheck disable=SC2154  # variables of the parts before it

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin

# each FILE KIND WORDS TROUBLE [must]: of each line NAME VALUE of the request, which `is_FILE` does not find as it is to be,
# `do_FILE` changes it.  WORDS say so, TROUBLE says that it could not be; with `must` that is the end.
each() {
  local name value words
  requested "$1" >"$GPUNODE_IN/.$1.asked"
  while read -r name value; do
    ! "is_$1" "$name" "$value" || continue
    checking || attempt "do_$1" "$name" "$value" || {
      eval "words=\"$4\""
      [ -z "${5:-}" ] || finish failed "$words: $why" "systemctl status $name"
      [ -z "$words" ] || say note "$words${why:+: $why}"
      continue
    }
    eval "words=\"$3\""
    changed "$2" "$name" "$words"
  done <"$GPUNODE_IN/.$1.asked"
}

is_stop() { ! unit_runs "$1"; }
do_stop() { systemctl stop "$1"; }
is_start() { is_active "$1"; }
do_start() { act_on start "$1"; }
is_enable() { case $(systemctl is-enabled "$1" 2>/dev/null) in enabled | enabled-runtime) ;; *) false ;; esac }
do_enable() { systemctl --no-reload enable "$1"; }
is_disable() { ! is_enable "$1"; }
do_disable() { systemctl --no-reload disable "$1"; }
is_mask() { case $(systemctl is-enabled "$1" 2>/dev/null) in masked*) false ;; esac }
do_mask() { systemctl --no-reload unmask "$1" && { ! keep_gpus || systemctl daemon-reload || :; }; }

is_alternative() { [ "$(alternative "$1")" = "$2" ]; } # as `alternative` (common.sh) printed it
do_alternative() {
  case $2 in
    auto) update-alternatives --auto "$1" ;;
    manual\ *) update-alternatives --set "$1" "${2#* }" ;;
    link\ *) ln -sfn "${2#* }" "/usr/local/$1" ;;
    absent) [ ! -L "/usr/local/$1" ] || rm -f "/usr/local/$1" ;;
    *) false ;;
  esac
}
is_sysctl() { [ "$(setting "$1")" = "$(printf '%s' "$2" | tr '\t' ' ')" ]; }
do_sysctl() { printf '%s\n' "$2" >"$(setting_place "$1")"; }
is_ecc() { [ "$(ecc_next "$1")" = "$2" ]; } # which waits for a reset
do_ecc() {
  nvidia-smi -i "$1" -e "$(if [ "$2" = Enabled ]; then echo 1; else echo 0; fi)"
  is_ecc "$@"
}
is_argument() { [ "$(argument "$1")" = "$2" ]; } # in the boot entries; a file of update-grub's has gone before
do_argument() { set_argument "$1" "$2" "$(argument "$1")"; }
is_link() { [ ! -L "$1" ]; }
do_link() { rm -f "$1"; }
is_cdi() { [ ! -e "$1" ]; }
do_cdi() { rm -f "$1"; }
is_initramfs() { is_cdi "$1"; }
do_initramfs() { rm -f "$1"; }
is_user() { [ "$(id -u "$1" 2>/dev/null || echo 0)" = 0 ]; }
do_user() { userdel "$1"; }
is_group() { ! grep -q "^$1:" /etc/group; }
do_group() { groupdel "$1"; }
is_kernel() { [ ! -d "/lib/modules/$1" ]; }
do_kernel() { [ -z "$(find "/lib/modules/$1" -type f ! -name 'modules.*' | head -n 1)" ] && rm -rf "/lib/modules/$1"; } # depmod's are no kernel
is_load() { [ -d "/sys/module/$1" ]; }
do_load() { modprobe "$1" && is_load "$1"; }

# reload_units: unit files have gone; GPU containers are spared where systemd can be notified of them
reload_units() {
  [ -n "$(requested reload)" ] && [ -d /run/systemd/system ] || return 0
  checking && return
  keep_gpus || { say note "systemd was not notified that unit files are gone: the running containers $affected_containers would lose their GPUs" && return; }
  attempt systemctl daemon-reload || say note "systemctl daemon-reload failed${why:+: $why}"
}

rebuild() {
  # shellcheck disable=SC2046 # words by design
  set -- $(initramfs_command)
  [ $# != 0 ] || return 0
  checking && changed module initramfs "rebuild the initramfs" && return
  umask 022
  attempt "$@" || finish failed "$1 failed: $why" "see the log; often /boot is full"
  changed module initramfs "rebuild the initramfs ($1)"
}

# keep_copies, remove_copies: what an uninstall has left because somebody wrote some of it is kept by later ones, too
keep_copies() { local folder; for folder in "$GPUNODE_STATE"/backup/*/; do [ ! -d "$folder" ] || : >"${folder}kept"; done; }
remove_copies() {
  local folder
  for folder in "$GPUNODE_STATE"/backup/*/; do [ -e "${folder}kept" ] || rm -rf "$folder"; done
  rmdir "$GPUNODE_STATE/backup" 2>/dev/null || :
}

# close_journal: all is as it was; the copies are of no more use after an uninstall
close_journal() {
  local verb
  verb=$(word close)
  [ -n "$verb" ] || return 0
  case $verb in
    uninstall)
      journal uninstall 'done'
      if [ -n "$(requested keep)" ]; then keep_copies; else remove_copies; fi
      ;;
    *) journal "$verb" 'done' ",\"to\":$(json_text "$(word to)")" ;;
  esac
}

need_root
checking || lock
# shellcheck disable=SC2016 # names are put in by each
{
  each stop unit 'stop $name' '$name cannot be stopped' must
  each disable unit 'disable $name' '$name cannot be disabled' must
  each ecc gpu 'ECC of $name: $value after a reset' 'ECC of $name could not be set to $value'
  reload_units
  each alternative alternative 'set /usr/local/$name to $value again' '/usr/local/$name could not be put back to $value'
  each argument argument 'kernel argument $name: $value in the boot entries' 'the kernel argument $name could not be put back'
  each sysctl sysctl '$name = $value' '$name could not be set to $value'
  each link file 'remove the link $name' '$name could not be removed'
  each cdi file 'remove $name' '$name could not be removed'
  each user user 'remove the user $name' 'the user $name stays'
  each group group 'remove the group $name' 'the group $name stays'
  each kernel module 'remove /lib/modules/$name' ''
  each load module 'load $name' '$name is not loaded again before the next boot' # of nouveau, say, the GPU may want a reboot
  each mask unit 'unmask $name' '$name stays masked'
  each enable unit 'enable $name' '$name could not be enabled again' # of some the hardware may not let them start
  each start unit 'start $name' '$name does not start again'
  [ -z "$(requested rebuild)" ] || rebuild # first: some tools make one for each kernel
  each initramfs file 'remove $name' '$name could not be removed'
}
checking || close_journal
cat "$log"
[ "$changes" = 0 ] && finish unchanged "units, modules and settings are as they were"
checking && finish changed "$changes change(s) would be undone"
finish changed "units, modules and settings are as they were"
