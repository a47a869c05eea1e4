#!/bin/sh
# The CDI specification of this node's GPUs: made by nvidia-ctk, compared, put in place, and kept fresh by systemd units.
# Request and output: core/items/cdi.py.  Runs behind common.sh, transaction.sh and own_units.sh.
# shellcheck disable=SC2154  # variables of the parts before it

SETTINGS=/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env # what nvidia-cdi-refresh.service goes by, and so do we
UNITS=/etc/systemd/system

# settings: NVIDIA's own settings of the refresh service, as environment variables
settings() {
  local key value
  [ -r "$SETTINGS" ] || return 0
  while IFS='=' read -r key value; do
    case $key in NVIDIA_*[!A-Z0-9_]* | NVIDIA_) continue ;; NVIDIA_*) ;; *) continue ;; esac
    case $value in \"*\") value=${value#\"} value=${value%\"} ;; \'*\') value=${value#\'} value=${value%\'} ;; esac
    export "$key=$value"
  done <"$SETTINGS"
}

# generate FILE: what nvidia-ctk says today
generate() {
  attempt env NVIDIA_CTK_CDI_OUTPUT_FILE_PATH= nvidia-ctk cdi generate --output="$1" && [ -s "$1" ]
}

no_specification() {
  [ -e /proc/driver/nvidia/version ] || [ -e /dev/dxg ] || [ -d /sys/module/nvgpu ] ||
    not_yet "no NVIDIA driver is loaded: $why" "modprobe nvidia, or gpunode provision"
  finish failed "nvidia-ctk cdi generate failed: $why" "nvidia-smi has to work first; then run again"
}

# refresh TARGET: the specification there is what nvidia-ctk says today
refresh() {
  made=$GPUNODE_IN/spec.${1##*.}
  [ -e "$made" ] || generate "$made" || no_specification
  cmp -s "$made" "$1" && return
  also renew "$made" "$1"
}

# ---------------------------------------------------------------- kept fresh

# enable_unit UNIT: it begins with the machine; one that is masked is left so
enable_unit() {
  case $(systemctl is-enabled "$1" 2>/dev/null) in
    static | alias | indirect | generated) ;;
    masked*) say note "$1 is masked: the specification is not renewed by itself" ;;
    *) at_boot "$1" ;;
  esac
}

# start_unit UNIT: it is at work now
start_unit() {
  case $(systemctl is-active "$1" 2>/dev/null)$(systemctl is-enabled "$1" 2>/dev/null) in active* | *masked*) return ;; esac
  changed unit "$1" "starts $1"
  checking || prior active "$1" inactive active
  checking || attempt systemctl start "$1" || finish failed "cannot start $1: $why" "systemctl status $1"
}

# clear_failure UNIT: one that ran before the driver's libraries were there has hit its start limit and starts no more
clear_failure() {
  [ "$(systemctl is-failed "$1" 2>/dev/null)" = failed ] || return 0
  changed unit "$1" "clears the failure of $1"
  checking || attempt systemctl reset-failed "$1" || finish failed "cannot reset $1: $why" "systemctl status $1"
}

# ended UNIT: how it ended the last time, and when it had started («0»: it has not)
ended() { systemctl show -p Result -p ExecMainStartTimestampMonotonic "$1" 2>/dev/null | tr '\n' ' '; }

# prove UNIT: it is run where that is not known of today; 1 where its ExecCondition passes this node over: NVIDIA's unit
# looks for the module in /lib/modules, where that of an image may not be, and makes nothing then
prove() {
  local last_run
  case $(systemctl is-enabled "$1" 2>/dev/null) in masked*) return 0 ;; esac
  last_run=$(ended "$1")
  case "$changes $last_run" in
    "0 "*Result=success*Monotonic=0* | "0 "*Monotonic=0*Result=success*) ;;
    "0 "*Result=success*) kept=yes && return ;;
  esac
  if ! checking; then
    systemctl start "$1" >>"$log" 2>&1 || :
    last_run=$(ended "$1")
  fi
  case $last_run in *Result=exec-condition*) say note "$1 passes this node over by its ExecCondition" && return 1 ;; esac
  ! checking || return 0
  case $last_run in
    *Monotonic=0*) say note "$1 did not run, its conditions are not met: after a new driver, run gpunode again" ;;
    *Result=success*) kept=yes ;;
    *Result=*) say note "$1 fails ($(systemctl show -p Result "$1" 2>/dev/null)): after a new driver, run gpunode again" ;;
  esac
}

keep_fresh() {
  systemctl show -p Version >/dev/null 2>&1 || {
    say note "no systemd here: after a new driver, run gpunode again"
    return
  }
  if systemctl cat nvidia-cdi-refresh.path >/dev/null 2>&1 && kept_by nvidia-cdi-refresh; then return; fi
  if [ -e "$GPUNODE_IN/service" ] && [ -e "$GPUNODE_IN/path" ]; then
    rm -f "$GPUNODE_IN/changes" # the specification is written
    for name in service path; do also write "$GPUNODE_IN/$name" "$UNITS/gpunode-cdi-refresh.$name"; done
    write_files
    ! kept_by gpunode-cdi-refresh || return 0
  fi
  say note "nothing renews the specification: after a boot and a new driver, run gpunode again"
}

# kept_by NAME: its units begin with the machine and are at work; 1 where the service passes this node over
kept_by() {
  clear_failure "$1.service"
  clear_failure "$1.path"
  enable_unit "$1.service"
  enable_unit "$1.path"
  start_unit "$1.path"
  prove "$1.service"
}

# ---------------------------------------------------------------- all of it

need_root
have nvidia-ctk || not_yet "nvidia-ctk is not installed" "install the NVIDIA Container Toolkit: gpunode provision does"
settings
output=$(word output)
output=${output:-${NVIDIA_CTK_CDI_OUTPUT_FILE_PATH:-/var/run/cdi/nvidia.yaml}}
for folder in "$(dirname "$output")" /etc/cdi; do
  [ ! -e "$folder/nvidia.yaml" ] || [ ! -e "$folder/nvidia.json" ] ||
    finish refused "nvidia.yaml and nvidia.json in $folder name the same devices: engines take neither" "remove one of them"
done
checking || lock
refresh "$output"
for found in /etc/cdi/nvidia.yaml /etc/cdi/nvidia.json; do # made by hand once: its devices count in addition to the others
  [ ! -e "$found" ] || [ "$found" = "$output" ] || refresh "$found"
done
write_files
kept=
keep_fresh
[ "$changes" != 0 ] || finish unchanged "the CDI specification is what nvidia-ctk makes"
if checking; then finish changed "the CDI specification would be renewed"; fi
finish changed "the CDI specification is what nvidia-ctk makes${kept:+, and is kept so}"
