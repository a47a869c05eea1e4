#!/bin/sh
# Units, links, alternatives, kernel settings, modules and the initramfs as they were before gpunode; and the line in the
# journal that says so.  Request and output: core/undo/requests.py.  Runs behind common.sh, devices.sh and reload.sh.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
log=$GPUNODE_IN/.log changes=0
: >"$log"

# trouble MESSAGE: something of no weight could not be put back
trouble() { say note "$1$(tail -n 1 "$log" | sed 's/^./: &/')"; }

stop_units() {
  local unit
  for unit in $(requested stop); do
    case $(systemctl is-active "$unit" 2>/dev/null) in active | activating | reloading) ;; *) continue ;; esac
    checking || systemctl stop "$unit" >>"$log" 2>&1 </dev/null 9>&- || finish failed "$unit cannot be stopped: $(last_words)" "systemctl status $unit"
    changed unit "$unit" "stop $unit"
  done
}

disable_units() {
  local unit
  for unit in $(requested disable); do
    case $(systemctl is-enabled "$unit" 2>/dev/null) in enabled | enabled-runtime) ;; *) continue ;; esac
    checking || systemctl --no-reload disable "$unit" >>"$log" 2>&1 </dev/null 9>&- || finish failed "$unit cannot be disabled: $(last_words)" "systemctl status $unit"
    changed unit "$unit" "disable $unit"
  done
}

# UNIT absent: units that nothing could start
unmask_units() {
  local unit
  for unit in $(requested mask | cut -d ' ' -f 1); do
    case $(systemctl is-enabled "$unit" 2>/dev/null) in masked*) ;; *) continue ;; esac
    checking || systemctl --no-reload unmask "$unit" >>"$log" 2>&1 </dev/null 9>&- || { trouble "$unit stays masked" && continue; }
    checking || ! keep_gpus || systemctl daemon-reload >>"$log" 2>&1 </dev/null 9>&-
    changed unit "$unit" "unmask $unit"
  done
}

# units that gpunode has taken away, and that are back: of some the hardware may not let them start
enable_units() {
  local unit
  for unit in $(requested enable); do
    case $(systemctl is-enabled "$unit" 2>/dev/null) in enabled | enabled-runtime) continue ;; esac
    checking || systemctl --no-reload enable "$unit" >>"$log" 2>&1 </dev/null 9>&- || { trouble "$unit could not be enabled again" && continue; }
    changed unit "$unit" "enable $unit"
  done
}

start_units() {
  local unit
  for unit in $(requested start); do
    ! systemctl is-active -q "$unit" 2>/dev/null || continue
    checking || systemctl start "$unit" >>"$log" 2>&1 </dev/null 9>&- || { trouble "$unit does not start again" && continue; }
    changed unit "$unit" "start $unit"
  done
}

# reload_units: unit files have gone; GPU containers are spared where systemd can be notified of them
reload_units() {
  [ -n "$(requested reload)" ] && [ -d /run/systemd/system ] || return 0
  checking && return
  # shellcheck disable=SC2154 # by keep_gpus
  keep_gpus || { say note "systemd was not notified that unit files are gone: the running containers $affected_containers would lose their GPUs" && return; }
  systemctl daemon-reload >>"$log" 2>&1 </dev/null 9>&- || trouble "systemctl daemon-reload failed"
}

# NAME HOW…: /usr/local/NAME, as `alternative` (common.sh) printed it
alternatives() {
  local name how path
  requested alternative >"$GPUNODE_IN/.alternatives"
  while read -r name how path; do
    [ "$(alternative "$name")" != "$how${path:+ $path}" ] || continue
    checking || case $how in
      auto) update-alternatives --auto "$name" >>"$log" 2>&1 ;;
      manual) update-alternatives --set "$name" "$path" >>"$log" 2>&1 ;;
      link) ln -sfn "$path" "/usr/local/$name" 2>>"$log" ;;
      absent) [ ! -L "/usr/local/$name" ] || rm -f "/usr/local/$name" 2>>"$log" ;;
      *) false ;;
    esac || { trouble "/usr/local/$name could not be put back to $how $path" && continue; }
    changed alternative "$name" "set /usr/local/$name to $how${path:+ $path} again"
  done <"$GPUNODE_IN/.alternatives"
}

settings() {
  local key value
  requested sysctl >"$GPUNODE_IN/.settings"
  while read -r key value; do
    [ "$(setting "$key")" != "$(printf '%s' "$value" | tr '\t' ' ')" ] || continue
    checking || printf '%s\n' "$value" 2>>"$log" >"$(setting_place "$key")" || { trouble "$key could not be set to $value" && continue; }
    changed sysctl "$key" "$key = $value"
  done <"$GPUNODE_IN/.settings"
}

# GPU MODE: ECC, which waits for a reset
ecc() {
  local gpu mode number
  requested ecc >"$GPUNODE_IN/.ecc"
  while read -r gpu mode; do
    [ "$(ecc_next "$gpu")" != "$mode" ] || continue
    checking || {
      case $mode in Enabled) number=1 ;; *) number=0 ;; esac
      nvidia-smi -i "$gpu" -e "$number" >>"$log" 2>&1 </dev/null
      [ "$(ecc_next "$gpu")" = "$mode" ]
    } || { trouble "ECC of $gpu could not be set to $mode" && continue; }
    changed gpu "$gpu" "ECC of $gpu: $mode after a reset"
  done <"$GPUNODE_IN/.ecc"
}

# NAME NAME=VALUE|absent: arguments of the kernel in the boot entries; a file of update-grub's has gone before
arguments() {
  local name wanted now
  requested argument >"$GPUNODE_IN/.arguments"
  while read -r name wanted; do
    now=$(argument "$name")
    [ "$now" != "$wanted" ] || continue
    checking || set_argument "$name" "$wanted" "$now" >>"$log" 2>&1 || { trouble "the kernel argument $name could not be put back" && continue; }
    changed argument "$name" "kernel argument $name: $wanted in the boot entries"
  done <"$GPUNODE_IN/.arguments"
}

links() {
  local path
  requested link >"$GPUNODE_IN/.links"
  while read -r path _; do
    [ -L "$path" ] || continue
    checking || rm -f "$path" 2>>"$log" || { trouble "$path could not be removed" && continue; }
    changed file "$path" "remove the link $path"
  done <"$GPUNODE_IN/.links"
}

# accounts and folders of kernels that packages made, and left when they went
accounts() {
  local user group
  for user in $(requested user | cut -d ' ' -f 1); do
    [ "$(id -u "$user" 2>/dev/null || echo 0)" != 0 ] || continue
    checking || userdel "$user" >>"$log" 2>&1 9>&- || { trouble "the user $user stays" && continue; }
    changed user "$user" "remove the user $user"
  done
  for group in $(requested group | cut -d ' ' -f 1); do
    grep -q "^$group:" /etc/group || continue
    checking || groupdel "$group" >>"$log" 2>&1 9>&- || { trouble "the group $group stays" && continue; }
    changed group "$group" "remove the group $group"
  done
}

kernels() {
  local kernel
  for kernel in $(requested kernel | cut -d ' ' -f 1); do
    [ -d "/lib/modules/$kernel" ] || continue
    checking || { # what depmod wrote is no kernel
      [ -z "$(find "/lib/modules/$kernel" -type f ! -name 'modules.*' | head -n 1)" ] && rm -rf "/lib/modules/$kernel"
    } || continue
    changed module "$kernel" "remove /lib/modules/$kernel"
  done
}

# modules that gpunode took out: of nouveau, say, the GPU may want a reboot
load_modules() {
  local module
  for module in $(requested load); do
    [ ! -d "/sys/module/$module" ] || continue
    checking || { modprobe "$module" >>"$log" 2>&1 </dev/null && [ -d "/sys/module/$module" ]; } ||
      { trouble "$module is not loaded again before the next boot" && continue; }
    changed module "$module" "load $module"
  done
}

# initramfs: rebuilt first, since some tools make one for each kernel
initramfs() {
  [ -z "$(requested rebuild)" ] || rebuild
  made initramfs
}

# made KIND: files that scripts and units of packages made
made() {
  local path
  requested "$1" >"$GPUNODE_IN/.made"
  while read -r path _; do
    [ -e "$path" ] || continue
    checking || rm -f "$path" 2>>"$log" || { trouble "$path could not be removed" && continue; }
    changed file "$path" "remove $path"
  done <"$GPUNODE_IN/.made"
}

rebuild() {
  if have update-initramfs; then
    set -- update-initramfs -u -k all
  elif have dracut; then
    set -- dracut --regenerate-all --force
  elif have mkinitcpio; then
    set -- mkinitcpio -P
  else
    return 0
  fi
  checking && changed module initramfs "rebuild the initramfs" && return
  (umask 022 && "$@") >>"$log" 2>&1 </dev/null 9>&- || finish failed "$1 failed: $(last_words)" "see the log; often /boot is full"
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
stop_units
disable_units
ecc
reload_units
alternatives
arguments
settings
links
made cdi
accounts
kernels
load_modules
unmask_units
enable_units
start_units
initramfs
checking || close_journal
cat "$log"
[ "$changes" = 0 ] && finish unchanged "units, modules and settings are as they were"
checking && finish changed "$changes change(s) would be undone"
finish changed "units, modules and settings are as they were"
