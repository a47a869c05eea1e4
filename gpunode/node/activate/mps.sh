#!/bin/sh
# CUDA MPS on a host without Kubernetes: a unit of systemd's that runs nvidia-cuda-mps-control with the GPUs in exclusive
# mode, each client with its share of threads and memory; or nothing of it.
# Request and output: core/items/sharing.py.  Runs behind common.sh, transaction.sh and own_units.sh.
# shellcheck disable=SC2154  # variables of the parts before it

UNIT=gpunode-mps.service
SETTINGS=/etc/gpunode/mps # commands for the control daemon

fail() {
  tail -n 20 "$log"
  [ "$changes" = 0 ] || journal activate failed ",\"message\":$(json_text "$1")"
  finish failed "$1" "${2:-}"
}

control() { echo "$1" | nvidia-cuda-mps-control 2>&1 9>&-; }
main_pid() { systemctl show -p MainPID "$UNIT" 2>/dev/null | sed -n 's/^MainPID=//p'; }

# limits_memory: the loaded driver's control daemon knows the command for it
limits_memory() {
  local driver
  driver=$(cut -d . -f 1 /sys/module/nvidia/version 2>/dev/null)
  [ "${driver:-0}" -ge "$SMI_MPS_MEMORY_SINCE" ]
}

# settings: the GPU's threads and the memory of the smallest GPU in equal parts, for every GPU alike
settings() {
  limits_memory && memory=1 || memory=0
  smi --query-gpu=index,memory.total --format=csv,noheader,nounits >"$GPUNODE_IN/.memory" || not_yet "nvidia-smi does not answer: $(head -n 1 "$GPUNODE_IN/.memory")" "gpunode provision installs and loads the driver"
  awk -F ', ' -v shares="$(word replicas)" -v memory="$memory" '{ gpu[NR] = $1; if (NR == 1 || $2 < least) least = $2 }
    END { print "set_default_active_thread_percentage " int(100 / shares)
      if (memory && least > 0) for (i = 1; i <= NR; i++) print "set_default_device_pinned_mem_limit " gpu[i] " " int(least / shares) "M" }' "$GPUNODE_IN/.memory" >"$GPUNODE_IN/settings"
}

# outdated: the daemon runs with older settings, or not at all
outdated() {
  local started
  is_active "$UNIT" || return 0
  started=$(stat -c %Y "/proc/$(main_pid)" 2>/dev/null) && [ "$(stat -c %Y "$SETTINGS" 2>/dev/null || echo 0)" -gt "$started" ] && return
  [ "$(control get_default_active_thread_percentage | cut -d . -f 1)" != "$(sed -n 's/^set_default_active_thread_percentage //p' "$GPUNODE_IN/settings")" ]
}

refuse() {
  local mine comm pid
  have nvidia-cuda-mps-control || not_yet "nvidia-cuda-mps-control is not installed" "install the driver's package that has it (Debian: nvidia-cuda-mps; Ubuntu: nvidia-compute-utils)"
  ! smi --query-gpu=mig.mode.current --format=csv,noheader | grep -q Enabled ||
    finish refused "MIG is on, and MPS is for whole GPUs" "turn MIG off first, or choose one of both in gpunode.yml"
  mine=$(main_pid)
  for comm in /proc/[0-9]*/comm; do # 15 characters are all that a name there has
    pid=${comm#/proc/} pid=${pid%/comm}
    [ "$(cat "$comm" 2>/dev/null)" != nvidia-cuda-mps ] || [ "$pid" = "${mine:-0}" ] || [ "$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$pid/status")" = "${mine:-0}" ] ||
      grep -qs "$UNIT" "/proc/$pid/cgroup" || finish refused "another MPS control daemon runs (PID $pid)" "echo quit | nvidia-cuda-mps-control ends it; what starts it must not do so again"
  done
}

# run: begins with the machine, and runs with these settings
run() {
  local percentage
  also write "$GPUNODE_IN/settings" "$SETTINGS"
  write_files
  at_boot "$UNIT"
  [ "$restart" = yes ] || return 0
  changed unit "$UNIT" "starts $UNIT, $(word replicas) clients for each GPU"
  ! checking || return 0
  prior active "$UNIT" "$(systemctl is-active "$UNIT" 2>/dev/null)" active
  act_on restart "$UNIT" >>"$log" 2>&1 </dev/null 9>&- || {
    unit_log "$UNIT" -n 20 >>"$log"
    fail "$UNIT does not start" "journalctl -u $UNIT on the node; the end of it is in the log"
  }
  percentage=$(control get_default_active_thread_percentage)
  [ "${percentage%%.*}" = "$(sed -n 's/^set_default_active_thread_percentage //p' "$SETTINGS")" ] || fail "the MPS control daemon answers «$percentage»" "journalctl -u $UNIT on the node"
}

need_root
checking || lock
if [ -n "$(word remove)" ]; then
  used=$(holders '/dev/nvidia[0-9]*')
  [ -z "$used" ] || ! is_active "$UNIT" || finish refused "$used is a client of MPS" "stop it, then run again; nothing was changed"
  not_at_boot "$UNIT"
  write_files
else
  refuse
  settings
  restart=no
  if outdated || ! cmp -s "$GPUNODE_IN/settings" "$SETTINGS"; then restart=yes; fi
  used=$(holders '/dev/nvidia[0-9]*')
  [ "$restart" = no ] || [ -z "$used" ] || finish refused "$used uses a GPU, and would lose it to MPS" "stop it, then run again; nothing was changed"
  run
fi
[ "$changes" = 0 ] || checking || journal activate 'done' ",\"changed\":$changes,\"reboot\":\"\""
[ "$changes" != 0 ] || finish unchanged "MPS is up to date"
! checking || finish changed "$changes change(s) would be made"
[ -z "$(word remove)" ] || finish changed "MPS is off, and nothing of it is left on the node"
[ "$memory" = 1 ] || finish changed "the MPS control daemon runs, and begins with the machine; each client may take all memory: drivers before $SMI_MPS_MEMORY_SINCE know no limit of it"
finish changed "the MPS control daemon runs, and begins with the machine"
