# shellcheck shell=sh
# Before systemd reloads, it is notified of the GPUs of running containers.  Behind common.sh and devices.sh, before
# packages.sh and activate.sh: whoever runs what makes systemd reload calls keep_gpus first (docs/runtime.md).

# keep_gpus: before systemd applies its device rules again (daemon-reload, which `systemctl enable` and package scripts do
# as well), tells it of the GPUs that it would take from running containers.  Where that is not possible, 1, and $affected_containers
# names the containers.
keep_gpus() {
  affected_containers=
  systemd_runs || return 0
  gpu_containers >"$GPUNODE_IN/.gpu_containers"
  while read -r _ gpu_name gpu_scope _ gpu_state gpu_devices _; do
    case $gpu_state in keepable | exposed) ;; *) continue ;; esac
    if [ "$gpu_state" = exposed ] || ! { checking || notify_systemd "$gpu_scope" "$gpu_devices"; }; then
      affected_containers="${affected_containers:+$affected_containers, }$gpu_name"
    elif ! checking; then
      say note "notified systemd of the GPUs of the running container $gpu_name, which keeps them so when systemd reloads"
    fi
  done <"$GPUNODE_IN/.gpu_containers"
  [ -z "$affected_containers" ]
}

systemd_runs() { [ -d /run/systemd/system ]; }

# notify_systemd UNIT DEVICE,DEVICE…: until the unit ends; reloads nothing, and writes nothing that outlives it
notify_systemd() (
  unit=$1 devices=$2,
  set --
  while [ -n "$devices" ]; do
    set -- "$@" "DeviceAllow=${devices%%,*} rw"
    devices=${devices#*,}
  done
  systemctl set-property --runtime "$unit" "$@" >>"${log:-/dev/null}" 2>&1 </dev/null 9>&-
)
