# shellcheck shell=sh
# The pods on this node that hold GPUs, before accept.sh and mig.sh.

# kubelet_folders: the usual one, and those that running kubelets name (k0s has its own)
kubelet_folders() {
  echo "${KUBELET:-/var/lib/kubelet}"
  cat "${PROC:-/proc}"/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | sed -n -e 's/^\(--kubelet-arg=\)*-*root-dir=//p' -e '/^--root-dir$/{n;p;}'
}

# gpu_pods: lines `NAMESPACE/NAME DEVICE…`, by the kubelet's own lists of who has which devices of NVIDIA: UUIDs, of a
# claim the DRA driver's names.  A pod that sleeps holds its device and has no file open.  What has ended has no process
# in its cgroup.
gpu_pods() {
  local proc="${PROC:-/proc}" kubelet uid devices name
  kubelet_folders | sort -u | while read -r kubelet; do
    tr '{' '\n' <"$kubelet/device-plugins/kubelet_internal_checkpoint" | awk '
      uid != "" { sub(/}.*/, ""); gsub(/"[^"]*":|[][",]/, " "); print uid, $0 }
      { uid = "" }
      /"ResourceName":"nvidia\.com\// { uid = $0; sub(/.*"PodUID":"/, "", uid); sub(/".*/, "", uid) }'
    # JSON in a text of JSON; a claim begins with its UID
    sed -e 's/\\//g' -e 's/"ClaimUID"/\n&/g' "$kubelet/dra_manager_state" | awk '/"gpu\.nvidia\.com":/ {
      uids = $0; sub(/.*"PodUIDs":[{]/, "", uids); sub(/[}][}].*/, "", uids); gsub(/":[{][}]?|"/, "", uids)
      sub(/.*"gpu\.nvidia\.com":/, ""); sub(/[}]][}].*/, ""); gsub(/"DeviceName":"/, "\n")
      count = split($0, parts, "\n"); devices = ""
      for (i = 2; i <= count; i++) { sub(/".*/, "", parts[i]); devices = devices " " parts[i] }
      count = split(uids, each, ","); for (i = 1; i <= count; i++) print each[i] devices }'
  done 2>/dev/null | while read -r uid devices; do
    grep -qs "pod$(echo "$uid" | sed 's/-/[-_]/g')" "$proc"/[0-9]*/cgroup || continue # systemd's names have _
    for name in "${PODS_LOG:-/var/log/pods}"/*_"$uid"; do name=${name##*/}; done
    case $name in '*'*) name=$uid ;; *) name=${name%_*} && name=${name%%_*}/${name#*_} ;; esac
    echo "$name $devices"
  done
}
