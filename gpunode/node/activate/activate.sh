#!/bin/sh
# Make what is installed run: rebuild the initramfs where it is older than what goes into it, unload what is in the
# way, load modules, set alternatives and links, start services; or say why only a reboot can do it.
# Request and output: core/items/activation.py.  Runs behind common.sh, driver_state.sh, devices.sh and reload.sh.
# shellcheck disable=SC2154  # variables of the parts before it

reboot_reason=
restarted= # units

KERNEL=$(uname -r)

# announced PATTERN: whether earlier steps of this run in check mode would have left a line that begins so (core/items/activation.py)
announced() { requested foretold | grep -q "^$1"; }

needs_reboot() { [ -n "$reboot_reason" ] || reboot_reason=$1; }

fail() {
  restart_stopped
  show_log
  [ "$changes" = 0 ] || journal activate failed ",\"message\":$(json_text "$1")"
  finish failed "$1" "${2:-}"
}

# loaded MODULE: in check mode, whether it would be by now
loaded() {
  case " ${would_load:-} " in *" $1 "*) return ;; esac
  case " ${would_unload:-} " in *" $1 "*) return 1 ;; esac
  [ -d "/sys/module/$1" ] && return
  case $1 in # may be built into the kernel, and then has no folder
    overlay) grep -qw overlay /proc/filesystems ;;
    br_netfilter) [ -d /proc/sys/net/bridge ] ;;
    *) return 1 ;;
  esac
}

# to_be_exchanged: in check mode, whether packages of the loaded driver, or its flavour, would be other ones by now
to_be_exchanged() {
  checking || return 1
  announced "version \([0-9]*:\)\{0,1\}$(module_version)\([^0-9.]\|$\)" || [ -n "$(word flavour)" ]
}

# other_parameters: the first parameter that the loaded driver has otherwise, as «NAME is NOW, WANTED is wanted»
other_parameters() {
  requested parameters | while read -r name wanted; do
    now=$(sed -n "s/^$name: //p" /proc/driver/nvidia/params 2>/dev/null)
    [ -n "$now" ] && [ "$(as_shown "$now")" != "$(as_shown "$wanted")" ] && echo "$name is $now, $wanted is wanted" && break
  done
}

# as_shown VALUE: a number as the kernel shows it, of 32 bits without sign; a text without quotes
as_shown() {
  case ${1#-} in
    0x | 0x*[!0-9a-fA-F]*) echo "$1" ;;
    0x*) echo "$(($1 & 0xffffffff))" ;;
    *[!0-9]* | '') printf '%s\n' "$1" | tr -d '"' ;;
    *) echo "$(($1 & 0xffffffff))" ;;
  esac
}

# ---------------------------------------------------------------- initramfs

# kernels whose initramfs is missing or older than the files that go into it; only kernels that have an image
stale_initramfs() {
  if announced 'file /etc/\(modprobe.d\|modules-load.d\|dracut.conf.d\|initramfs-tools\|mkinitcpio.conf\)'; then coming=1; else coming=; fi
  for image in /boot/vmlinuz-*; do
    [ -e "$image" ] || continue
    release=${image#/boot/vmlinuz-}
    initrd=$(initramfs_of "$release")
    if [ -n "$coming" ] || [ -z "$initrd" ] || [ -n "$(find /etc/modprobe.d /etc/modules-load.d /etc/dracut.conf.d /etc/initramfs-tools /etc/mkinitcpio.conf \
      -type f -newer "$initrd" 2>/dev/null | head -n 1)" ]; then
      echo "$release"
    fi
  done
}

# initramfs_of KERNEL: its file, nothing where there is none
initramfs_of() { for initrd in "/boot/initrd.img-$1" "/boot/initramfs-$1.img" "/boot/initrd-$1"; do [ ! -e "$initrd" ] || { echo "$initrd" && break; }; done; }

# prior_initramfs KERNEL…: which of them there are, in the journal
prior_initramfs() {
  for release in "$@"; do
    initrd=$(initramfs_of "$release")
    if [ -n "$initrd" ]; then prior initramfs "$initrd" present rebuilt; else prior initramfs "/boot/initrd.img-$release" absent rebuilt; fi
  done
}

initramfs() {
  [ -n "$(requested initramfs)" ] || return 0
  stale=$(stale_initramfs | tr '\n' ' ')
  [ -n "$stale" ] || return 0
  checking && changed module initramfs "rebuild the initramfs of ${stale% }" && return
  # shellcheck disable=SC2086 # releases of kernels
  prior_initramfs $stale
  # shellcheck disable=SC2046 # words by design
  set -- $(initramfs_command)
  [ $# != 0 ] || { say note "no initramfs tool was found, so there is none to rebuild" && return; }
  (umask 022 && "$@") >>"$log" 2>&1 </dev/null 9>&- || fail "$1 failed" "see the log; often /boot is full"
  # update-initramfs -u passes kernels by that never had an initramfs
  stale=$(stale_initramfs)
  for release in $stale; do
    ! have update-initramfs || (umask 022 && update-initramfs -c -k "$release") >>"$log" 2>&1 </dev/null 9>&- || fail "update-initramfs -c -k $release failed" "see the log"
  done
  changed module initramfs "rebuild the initramfs ($1)"
}

# ---------------------------------------------------------------- modules

clients() {
  open_gpus | cut -d ' ' -f 1 | sort -u | while read -r pid; do
    to_be_stopped "$pid" || printf '%s (PID %s)\n' "$(cat "/proc/$pid/comm" 2>/dev/null)" "$pid"
  done | sort -u
}

# to_be_stopped PID: whether it is of a unit that check mode lets run and a real run stops
to_be_stopped() {
  checking || return 1
  for unit in $GPU_UNITS; do ! grep -q "/$unit\.service" "/proc/$1/cgroup" 2>/dev/null || return 0; done
  return 1
}

# unload MODULE: what is loaded upon it first; says a reason for a reboot and returns 1 where it is in use
unload() {
  local module
  for module in $(down_to "$1"); do unload_one "$module" || return; done
}

unload_one() {
  loaded "$1" || return 0
  checking && changed module "$1" "unload $1" && would_unload="${would_unload:-} $1" && return
  case " ${carried:-} " in *[[:space:]]"$1"[[:space:]]*) ;; *) prior module "$1" loaded absent ;; esac
  take_module "$1" || { needs_reboot "$1 is in use and cannot be unloaded${why:+: $why}" && return 1; }
  changed module "$1" "unloaded $1"
}

# The nvidia modules of another version, if nothing but our own services uses them.
unload_old_driver() {
  local users
  was=$(module_version)
  # shellcheck disable=SC2086 # words by design
  checking || pause $GPU_UNITS
  users=$(clients | tr '\n' ' ')
  if [ -n "$users" ]; then
    needs_reboot "nvidia $was is loaded, ${parameter:-$version is wanted}, and ${users% } uses the GPU"
    return 1
  fi
  set_aside_driver
  unload nvidia
}

# carry: what was loaded upon the old driver is loaded upon the new one, where that has it
carry() {
  local module
  for module in ${carried:-}; do
    loaded "$module" && continue
    if modinfo "$module" >/dev/null 2>&1; then load "$module"; else say note "$module was loaded, and the driver that is installed now has none"; fi
  done
}

restart_stopped() {
  checking && return
  bring_back
  resume
}

load() {
  loaded "$1" && return
  checking && changed module "$1" "load $1" && would_load="${would_load:-} $1" && return
  have modprobe || fail "$1 is not loaded and there is no modprobe" "install kmod"
  prior module "$1" absent loaded
  attempt modprobe "$1" && loaded "$1" && changed module "$1" "loaded $1" && return
  # Debian's own install command says after the cause that it could not run
  why=$(grep -m 1 'could not insert' "$GPUNODE_IN/.attempt" || printf '%s' "$why")
  case $why in
    *"Key was rejected"* | *"Required key not available"*)
      fail "Secure Boot rejects the module $1: $why" "gpunode plan says how to enrol the key (mokutil --import) and where it is; or use signed modules" ;;
    *"not found"*)
      other=$(find /lib/modules -name "$1.ko*" -o -name "$(printf '%s' "$1" | tr _ -).ko*" 2>/dev/null | sed 's|^/lib/modules/||; s|/.*||' | sort -u | tr '\n' ' ')
      [ -n "$other" ] || fail "there is no module $1 for the running kernel $KERNEL, nor for another" "install its package, or the kernel headers and see dkms status"
      needs_reboot "$1 is there for kernel ${other% }, and $KERNEL runs" ;;
    *"No such device"*)
      other=$(kernels_own | grep -m 1 .) || fail "$1 finds no GPU it can drive: $why" "see dmesg: the GPU may need another flavour (open, proprietary) or branch"
      needs_reboot "$other holds the GPU" ;;
    *)
      other=$(kernels_own | grep -m 1 .) || fail "modprobe $1 failed: ${why:-no message, but the module is not there}" "see dmesg on the node"
      needs_reboot "$other holds the GPU" ;;
  esac
}

wants() { requested load | grep -qx "$1"; }

modules() {
  blocked=
  for module in $(requested unload); do unload "$module" || blocked=1; done
  if wants nvidia && loaded nvidia; then
    parameter=$(other_parameters)
    as_installed "$version" && [ -z "$parameter" ] && ! to_be_exchanged || unload_old_driver || blocked=1
  fi
  [ -z "$blocked" ] || return 0
  for module in $(requested load); do
    load "$module"
    [ -z "$reboot_reason" ] || return 0
  done
  carry
  checking || ! wants nvidia || [ -z "$version" ] || [ "$(module_version)" = "$version" ] ||
    fail "nvidia $(module_version) is loaded, $version is wanted, and it is $version that was installed" \
      "modinfo nvidia shows which file was taken: remove the older module (runfile, another DKMS version)"
}

# KEY VALUE: kernel settings in force now; /etc/sysctl.d has them for the next boot
settings() {
  requested sysctl >"$GPUNODE_IN/.settings"
  while read -r key wanted; do
    place=$(setting_place "$key")
    have_now=$(setting "$key")
    [ "$have_now" != "$wanted" ] || continue
    if ! checking; then
      [ -e "$place" ] || fail "there is no kernel setting $key" "net.bridge… needs the module br_netfilter: modprobe br_netfilter"
      prior sysctl "$key" "$have_now" "$wanted"
      printf '%s\n' "$wanted" 2>>"$log" >"$place" || fail "$key cannot be set to $wanted" "is /proc/sys writable, and who keeps it so?"
    fi
    changed sysctl "$key" "$key = $wanted (was ${have_now:-not there})"
  done <"$GPUNODE_IN/.settings"
}

# ---------------------------------------------------------------- the kernel's command line

# WORD present|absent: in the boot entries by the distribution's own tool, and in force after a reboot
arguments() {
  local word state now wanted
  requested arguments >"$GPUNODE_IN/.arguments"
  [ -s "$GPUNODE_IN/.arguments" ] || return 0
  while read -r word state; do
    now=$(argument "${word%%=*}")
    case $state in present) ! has_argument "$word" "$now" || continue ;; *) [ "$now" = "$word" ] || continue ;; esac
    case $state in present) wanted=$word ;; *) wanted=absent ;; esac
    checking || write_argument "${word%%=*}" "$now" "$wanted"
    changed argument "$word" "kernel argument $word: $state in the boot entries ($(loader))"
  done <"$GPUNODE_IN/.arguments"
  while read -r word state; do
    # shellcheck disable=SC2046 # words by design
    [ "$state" = absent ] || has_argument "$word" $(cat /proc/cmdline) ||
      needs_reboot "$word is on the kernel's command line from the next boot on"
  done <"$GPUNODE_IN/.arguments"
}

# write_argument NAME NOW WANTED
write_argument() {
  prior argument "$1" "$2" "$3"
  set_argument "$1" "$3" "$2" >>"$log" 2>&1 || fail "$(loader) failed" "see the log"
  now=$(argument "$1")
  [ "$now" = "$3" ] || [ "$3:$(loader)" = absent:update-grub ] ||
    fail "$(loader) leaves $now in the boot entries, and $3 is wanted" "what else sets the kernel's command line on this node?"
}

# ---------------------------------------------------------------- the GPUs themselves

# MODEL Enabled|Disabled: ECC, which a GPU keeps over boots and which waits for its reset: that is left to a reboot, which
# no program outlives anyway
ecc() {
  local gpu model now next wanted
  requested ecc >"$GPUNODE_IN/.ecc"
  [ -s "$GPUNODE_IN/.ecc" ] || return 0
  nvidia-smi --query-gpu=uuid,pci.device_id,ecc.mode.current,ecc.mode.pending --format=csv,noheader >"$GPUNODE_IN/.gpus" 2>>"$log" || {
    checking && say note "ECC is set once the driver answers" && return
    fail "nvidia-smi does not say which mode ECC is in" "nvidia-smi on the node"
  }
  tr -d , <"$GPUNODE_IN/.gpus" >"$GPUNODE_IN/.modes"
  while read -r gpu model now next; do
    model=10de:$(printf '%s' "${model#0x}" | cut -c -4 | tr A-F a-f)
    wanted=$(sed -n "s/^$model //p" "$GPUNODE_IN/.ecc")
    [ -n "$wanted" ] || wanted=$(sed -n 's/^\* //p' "$GPUNODE_IN/.ecc")
    [ -n "$wanted" ] || continue
    [ "$next" = "$wanted" ] || set_ecc "$gpu" "$next" "$wanted"
    [ "$now" = "$wanted" ] || needs_reboot "ECC of $gpu is $now, and $wanted after a reset"
  done <"$GPUNODE_IN/.modes"
}

# set_ecc GPU BEFORE AFTER
set_ecc() {
  checking || {
    prior ecc "$1" "$2" "$3"
    case $3 in Enabled) set -- "$@" 1 ;; *) set -- "$@" 0 ;; esac
    nvidia-smi -i "$1" -e "$4" >>"$log" 2>&1 </dev/null
    next=$(ecc_next "$1")
    [ "$next" = "$3" ] || fail "ECC of $1 stays $next after nvidia-smi -e $4" "nvidia-smi -q -d ECC on the node"
  }
  changed gpu "$1" "ECC of $1: $3 after a reset (was $2)"
}

# ---------------------------------------------------------------- links, alternatives and services

# gpu_files: whether every GPU of the driver has its device file.  /dev/nvidiactl says nothing of them: nvidia-smi leaves it
# behind without a driver, too.
gpu_files() (
  minors=$(sed -n 's/^Device Minor:[^0-9]*//p' /proc/driver/nvidia/gpus/*/information 2>/dev/null)
  for minor in ${minors:-0}; do
    [ -e "/dev/nvidia$minor" ] || exit 1
  done
)

# runc of 1.1.3 to 1.1.6 tells systemd only of devices whose number has a link in /dev/char, and systemd before 240 finds
# them by it.  NVIDIA's devices are no udev devices, so nobody makes theirs.
links() {
  [ -n "$(requested links)" ] || return 0
  if ! checking && loaded nvidia; then # the driver's tools make device files when they first need them
    gpu_files || ! have nvidia-smi || briefly nvidia-smi -L >>"$log" 2>&1
    [ -e /dev/nvidia-uvm ] || ! have nvidia-modprobe || briefly nvidia-modprobe -c 0 -u >>"$log" 2>&1
  fi
  unlinked_nodes >"$GPUNODE_IN/.unlinked"
  while read -r number path; do
    checking || prior link "/dev/char/$number" absent "..${path#/dev}"
    checking || { (umask 022 && mkdir -p /dev/char) && ln -sfn "..${path#/dev}" "/dev/char/$number"; } 2>>"$log" ||
      fail "/dev/char/$number cannot be made" "see the log: is /dev writable?"
    changed file "/dev/char/$number" "link /dev/char/$number to $path"
  done <"$GPUNODE_IN/.unlinked"
}

# NAME PATH: the link /usr/local/NAME, by update-alternatives where that knows it (NVIDIA's packages), else plainly.  The
# first toolkit on a node brings the link itself, be it a package or NVIDIA's installer: check mode leaves it to them.
alternatives() {
  requested alternatives | while read -r name path; do
    link=/usr/local/$name
    [ "$(readlink -f "$link" 2>/dev/null)" != "$(readlink -f "$path")" ] || continue
    [ -e "$path" ] || checking || { echo "$path does not exist" && exit 1; }
    [ -e "$path" ] || [ -e "$link" ] || continue
    printf '%s\t%s\n' "$name" "$link leads to $path" >>"$GPUNODE_IN/.alternatives"
    checking && continue
    prior alternative "$name" "$(alternative "$name")" "$path"
    if have update-alternatives && update-alternatives --query "$name" 2>/dev/null | grep -qx "Alternative: $path"; then
      update-alternatives --set "$name" "$path" >>"$log" 2>&1
    elif [ -e "$link" ] && [ ! -L "$link" ]; then
      echo "$link is a folder, not a link" && exit 1
    else
      ln -sfn "$path" "$link"
    fi || { echo "$link could not be set" && exit 1; }
  done >"$GPUNODE_IN/.why" || fail "$(cat "$GPUNODE_IN/.why")" "install that version first, or choose another default"
  [ ! -e "$GPUNODE_IN/.alternatives" ] || while IFS=$TAB read -r name line; do changed alternative "$name" "$line"; done <"$GPUNODE_IN/.alternatives"
}

# spare_containers UNIT: what follows makes systemd reload
spare_containers() {
  keep_gpus && return
  set -- "enabling $1 makes systemd reload, and the running containers $affected_containers would lose their GPUs" \
    "stop them, or start them with CDI (--device nvidia.com/gpu=…), then run again; docs/runtime.md"
  [ "$changes" != 0 ] || finish refused "$@"
  fail "$@"
}

# look_at UNIT: state, enabled (the words of systemctl), and is_enabled
look_at() {
  state=$(systemctl is-active "$1" 2>/dev/null)
  enabled=$(systemctl is-enabled "$1" 2>/dev/null)
  case $enabled in enabled | static | alias | indirect | generated | enabled-runtime) is_enabled=1 ;; *) is_enabled= ;; esac
}

# enable_unit UNIT: one with an init script reloads in spite of --no-reload (update-rc.d)
enable_unit() {
  case $enabled in masked*) fail "$1 is masked" "systemctl unmask $1, if it may run" ;; esac
  prior enabled "$1" "${enabled:-absent}" enabled
  attempt systemctl --no-reload enable "$1" || fail "$1 cannot be enabled: $why" "is its package installed?"
}

# begin start|restart UNIT, which has to run then: to systemd a unit that forks has started once its first process has
# ended, also where nothing is left of it; nvidia-imex ends so, and says why only in its own log
begin() {
  act_on "$1" "$2" >>"$log" 2>&1 </dev/null 9>&- && unit_runs "$2" && return
  unit_log "$2" -n 20 >>"$log"
  [ "$2" != nvidia-imex.service ] || tail -n 5 /var/log/nvidia-imex.log >>"$log" 2>/dev/null
  fail "$2 does not $1" "journalctl -u $2 on the node; the end of it is in the log"
}

# units that are to start at the next boot, and not now
enables() {
  for unit in $(requested enable); do
    look_at "$unit"
    [ -z "$is_enabled" ] || continue
    checking || enable_unit "$unit"
    changed unit "$unit" "enable $unit at boot"
  done
}

services() {
  for unit in $(requested services); do
    look_at "$unit"
    [ "$state" != active ] || [ -z "$is_enabled" ] || continue
    stale=$(systemctl show -p NeedDaemonReload "$unit" 2>/dev/null)
    [ -n "$is_enabled" ] && [ "$stale" != NeedDaemonReload=yes ] || spare_containers "$unit"
    checking && changed unit "$unit" "enable and start $unit" && continue
    [ "$stale" != NeedDaemonReload=yes ] || systemctl daemon-reload >>"$log" 2>&1 </dev/null 9>&-
    [ -n "$is_enabled" ] || enable_unit "$unit"
    [ "$state" = active ] || prior active "$unit" inactive active
    # after the reboot it starts by itself, and before it cannot
    [ -n "$reboot_reason" ] || begin start "$unit"
    changed unit "$unit" "enabled and started $unit"
  done
}

# mask: units that must not run; one that is enabled is so again when it is undone
masks() {
  local unit
  for unit in $(requested mask); do
    look_at "$unit"
    case $enabled:$state in masked*:inactive | masked*:failed) continue ;; esac
    checking && changed unit "$unit" "stop and mask $unit" && continue
    case $enabled in
      masked*) ;;
      *)
        [ "$state" != active ] || prior active "$unit" active inactive
        [ -z "$is_enabled" ] || prior enabled "$unit" "$enabled" masked
        prior mask "$unit" absent masked
        attempt systemctl --no-reload mask "$unit" || fail "$unit cannot be masked: $why" "systemctl status $unit"
        ;;
    esac
    ! keep_gpus || systemctl daemon-reload >>"$log" 2>&1 </dev/null 9>&- # else at the next one
    attempt systemctl stop "$unit" || fail "$unit cannot be stopped: $why" "systemctl status $unit"
    changed unit "$unit" "stopped and masked $unit"
  done
}

# units that run: again, because what they start from is new
restarts() {
  for unit in $(requested restart); do
    is_active "$unit" || continue
    [ "$(systemctl show -p NeedDaemonReload "$unit" 2>/dev/null)" != NeedDaemonReload=yes ] || {
      spare_containers "$unit"
      checking || systemctl daemon-reload >>"$log" 2>&1 </dev/null 9>&-
    }
    checking || begin restart "$unit"
    changed unit "$unit" "restart $unit"
    restarted="$restarted $unit"
  done
}

# in_force: what was asked for and is there, such as «nvidia 595.91.07, nvidia_uvm loaded; docker.service running»
in_force() {
  {
    for module in $(requested load); do
      loaded "$module" || continue
      [ "$module" != nvidia ] || module="nvidia $(module_version)"
      echo "loaded ${module% }"
    done
    for module in $(requested unload); do loaded "$module" || echo "not loaded $module"; done
    for unit in $(requested services); do ! unit_runs "$unit" || echo "running $unit"; done
    for unit in $restarted; do echo "restarted $unit"; done
    for unit in $(requested enable); do echo "enabled $unit"; done
    for unit in $(requested mask); do echo "masked $unit"; done
    requested alternatives | while read -r name path; do
      [ ! -e "$path" ] || [ "$(readlink -f "/usr/local/$name")" != "$(readlink -f "$path")" ] || echo "- /usr/local/$name leads to $path"
    done
    requested sysctl | while read -r key wanted; do echo "- $key = $wanted"; done
    [ -z "$(requested links)" ] || echo "- links of the GPUs in /dev/char"
  } >"$GPUNODE_IN/.in_force"
  awk '
    { state = $1; rest = substr($0, length($1) + 2) }
    /^not loaded / { state = "not loaded"; rest = substr($0, 12) }
    !(state in names) { order[++n] = state }
    { names[state] = names[state] (state in names && names[state] != "" ? ", " : "") rest }
    END {
      for (i = 1; i <= n; i++) printf "%s%s%s", (i > 1 ? "; " : ""), names[order[i]], (order[i] == "-" ? "" : " " order[i])
      if (!n) printf "nothing to load, start or set"
    }' "$GPUNODE_IN/.in_force"
}

# ---------------------------------------------------------------- main

version=$(word version)
[ -n "$version" ] || ! wants nvidia || version=$(userspace_version)
checking || {
  need_root
  lock
}
initramfs
modules
settings
restart_stopped
alternatives
links
enables
masks
services
restarts
arguments
ecc
say boot_id "$(boot_id)"
[ -z "$reboot_reason" ] || say reboot "$reboot_reason"
[ "$changes" = 0 ] || checking || journal activate 'done' ",\"changed\":$changes,\"reboot\":$(json_text "$reboot_reason")"
tail -n 20 "$log"
if [ -n "$reboot_reason" ]; then
  [ "$changes" = 0 ] && finish unchanged "reboot needed: $reboot_reason"
  finish changed "reboot needed: $reboot_reason"
fi
[ "$changes" = 0 ] && finish unchanged "$(in_force)"
checking && finish changed "$changes change(s) would be made"
finish changed "$(in_force)"
