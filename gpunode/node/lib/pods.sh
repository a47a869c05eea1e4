# shellcheck shell=sh
# The pods on this node that hold GPUs, before accept.sh and mig.sh.

# gpu_pods: lines `NAMESPACE/NAME DEVICE…`, by the kubelet's own lists of who has which devices of NVIDIA (of a claim it
# names none).  A pod that sleeps holds its device and has no file open.  What has ended has no process in its cgroup.
gpu_pods() {
  local kubelet="${KUBELET:-/var/lib/kubelet}" proc="${PROC:-/proc}" uid devices name
  {
    tr '{' '\n' <"$kubelet/device-plugins/kubelet_internal_checkpoint" | awk '
      uid != "" { sub(/}.*/, ""); gsub(/"[^"]*":|[][",]/, " "); print uid, $0 }
      { uid = "" }
      /"ResourceName":"nvidia\.com\// { uid = $0; sub(/.*"PodUID":"/, "", uid); sub(/".*/, "", uid) }'
    grep -o '"PodUIDs":{[^}]*}' "$kubelet/dra_manager_state" | grep -o '[0-9a-f]\{8\}-[0-9a-f-]*'
  } 2>/dev/null | while read -r uid devices; do
    grep -qs "pod$(echo "$uid" | sed 's/-/[-_]/g')" "$proc"/[0-9]*/cgroup || continue # systemd's names have _
    for name in "${PODS_LOG:-/var/log/pods}"/*_"$uid"; do name=${name##*/}; done
    case $name in '*'*) name=$uid ;; *) name=${name%_*} && name=${name%%_*}/${name#*_} ;; esac
    echo "$name $devices"
  done
}
