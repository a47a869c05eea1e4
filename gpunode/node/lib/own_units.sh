# shellcheck shell=sh
# shellcheck disable=SC2154 # log, of the script behind
# Units of gpunode's own, started and stopped.  Behind common.sh, before cdi.sh, mig.sh and mps.sh.
#
# Nothing here reloads systemd: that takes the GPUs from containers (docs/runtime.md).  Unit files that are new are
# read when they are first named; `systemctl enable` is called with --no-reload.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin

# at_boot UNIT: it begins with the machine
at_boot() {
  was=$(systemctl is-enabled "$1" 2>/dev/null)
  case $was in
    enabled) return ;;
    masked*) finish refused "$1 is masked" "systemctl unmask $1, if it may run" ;;
  esac
  changed unit "$1" "enables $1"
  ! checking || return 0
  prior enabled "$1" "${was:-absent}" enabled
  attempt systemctl --no-reload enable "$1" || finish failed "cannot enable $1: $why" "systemctl status $1"
}

# not_at_boot UNIT: it neither runs nor begins with the machine
not_at_boot() {
  if unit_runs "$1"; then
    changed unit "$1" "stops $1"
    checking || { prior active "$1" active inactive && attempt systemctl stop "$1"; } ||
      finish failed "cannot stop $1: $why" "systemctl status $1"
  fi
  [ "$(systemctl is-enabled "$1" 2>/dev/null)" = enabled ] || return 0
  changed unit "$1" "disables $1"
  checking || { prior enabled "$1" enabled disabled && attempt systemctl --no-reload disable "$1"; } ||
    finish failed "cannot disable $1: $why" "systemctl status $1"
}

# holders PATTERN…: who holds open a device of NVIDIA's that one of the patterns fits, as «COMMAND (PID N)», without NVIDIA's
# own agents
holders() {
  open_gpus >"$GPUNODE_IN/.open"
  while read -r pid target; do
    for pattern in "$@"; do
      # shellcheck disable=SC2254 # a pattern
      case $target in $pattern) ;; *) continue ;; esac
      name=$(cat "/proc/$pid/comm" 2>/dev/null)
      case $name in
        '' | nvidia-persiste* | nv-hostengine | dcgm-exporter | nvsm* | nv-fabricmanage* | nvidia-cuda-mps*) ;;
        *) echo "$name (PID $pid)" ;;
      esac
    done
  done <"$GPUNODE_IN/.open" | sort -u | tr '\n' ',' | sed 's/,$//; s/,/, /g'
}
