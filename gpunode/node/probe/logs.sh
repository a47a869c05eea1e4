#!/bin/sh
# The ends of the logs that say why a GPU does not work, for gpunode doctor.  Changes nothing.
#
# Each log stands behind a line `=== gpunode log NAME`.  What is not there is left out.

# Runs behind probe_words.sh.

LINES=3000  # of each log, the last ones
MOST=12000 # with what the driver says, and of what is no log: nvidia-smi -q of 16 GPUs
WIDTH=1200  # bytes of a line
WHOLE=1000000  # bytes of a file that is no log: a part of it would say something else

# log NAME: standard input, if it has anything
log() {
  cut -c "1-$WIDTH" | tail -n "$MOST" >"$GPUNODE_IN/log"
  [ ! -s "$GPUNODE_IN/log" ] || { printf '=== gpunode log %s\n' "$1" && cat "$GPUNODE_IN/log"; }
}

# reduced: standard input without its floods, before it is cut: of lines that differ in numbers alone (Xids: of the same
# code and GPU) the first 5 and the last 20; of these all that the driver says, and the last LINES of the rest
reduced() {
  awk -v most="$LINES" '
    {
      key = $0
      gsub(/0x[0-9a-fA-F]+|[0-9]+/, "#", key)
      if (match($0, /Xid \([^)]*\): [0-9]+/)) key = substr($0, RSTART, RLENGTH)
      if (++count[key] <= 5) text[NR] = $0
      else {
        place = key SUBSEP (count[key] % 20)
        if (place in last) delete text[last[place]]
        text[last[place] = NR] = $0
      }
    }
    END {
      for (n = 1; n <= NR; n++) others += n in text && text[n] !~ /NVRM|nvidia|Xid/
      for (n = 1; n <= NR; n++) if (n in text && (text[n] ~ /NVRM|nvidia|Xid/ || others-- <= most)) print text[n]
    }'
}

# shellcheck disable=SC2012  # the logs are root's
newest() { ls -tr "$@" 2>/dev/null | tail -n 4; }

files() {
  local name file
  name=$1
  shift
  newest "$@" | while read -r file; do cat "$file" 2>/dev/null; done | reduced | log "$name"
}

# whole NAME FILE
whole() {
  [ -r "$2" ] && [ -s "$2" ] && [ "$(wc -c <"$2")" -le "$WHOLE" ] || return 0
  printf '=== gpunode log %s\n' "$1" && cat "$2" && echo
}

kernel_messages | reduced | log kernel
if have journalctl; then
  for unit in kubelet $OTHER_UNITS snap.microk8s.daemon-kubelite $ENGINE_UNITS nvidia-persistenced nvidia-fabricmanager \
    nvidia-imex nvidia-cdi-refresh nvidia-dcgm gpunode-firstboot gpunode-mig gpunode-mps; do
    case $unit in *.socket) continue ;; esac
    unit=${unit%.service}
    set -- -u "$unit.service"
    # of the kubelet with the starts of its engine, behind which what it said of that is over
    if [ "$unit" = kubelet ]; then
      within 20 journalctl -b -q "$@" --no-pager -n 1 2>/dev/null | grep -q . || continue
      set -- _SYSTEMD_UNIT=kubelet.service
      for engine in kubelet.service $ENGINE_UNITS; do set -- "$@" + "UNIT=$engine" _PID=1; done
    fi
    within 20 journalctl -b "$@" --no-pager -o short-iso -n 50000 2>&1 | grep -v '^-- No entries' | reduced | log "$unit"
  done
fi
if have nvidia-smi; then
  if [ -e /proc/driver/nvidia/version ] || [ -e /dev/dxg ]; then
    within 20 nvidia-smi 2>&1 | log nvidia-smi
    # whole: the flags of -d, which would select, are others in each release
    within 20 nvidia-smi -q 2>&1 | log nvidia-smi-q
  else
    cat /proc/driver/nvidia/version 2>&1 | log nvidia-smi # started without a driver it makes device files all the same
  fi
fi
files nvidia-installer /var/log/nvidia-installer.log
files dkms /var/lib/dkms/nvidia*/*/build/make.log
files fabricmanager /var/log/fabricmanager.log
files apt /var/log/apt/term.log
files dnf /var/log/dnf.log
files containerd-log /var/lib/rancher/*/agent/containerd/containerd.log
files device-plugin /var/log/containers/*nvidia-device-plugin*.log /var/log/containers/*gpushare*.log
files kube-scheduler /var/log/containers/kube-scheduler*.log
whole kubelet-devices /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint
manifest=/etc/kubernetes/manifests/kube-scheduler.yaml
whole kube-scheduler-manifest "$manifest"
config=$(sed -n 's/^.*--config=\([^ "]*\).*$/\1/p' "$manifest" 2>/dev/null | head -n 1)
[ -z "$config" ] || whole kube-scheduler-config "$config"
# whether somebody listens at the extenders' addresses: URL, and the exit code of bash or of timeout
if [ "$config" ] && have bash && have timeout; then
  sed -n 's/^[ -]*urlPrefix: *["'\'']\{0,1\}\(https\{0,1\}:\/\/[A-Za-z0-9.:-]*\).*/\1/p' "$config" 2>/dev/null |
    head -n 3 | while read -r url; do
      port=80
      case $url in https:*) port=443 ;; esac
      host=${url#*://}
      case $host in *:*) port=${host##*:} host=${host%:*} ;; esac
      timeout 3 bash -c ': <"/dev/tcp/$1/$2"' bash "$host" "$port" 2>/dev/null
      printf '%s %s\n' "$url" "$?"
    done | log kube-scheduler-extender
fi
# by the kubelet's own rights, which are to read them
for kubeconfig in /etc/kubernetes/kubelet.conf /var/lib/rancher/k3s/agent/kubelet.kubeconfig \
  /var/lib/rancher/rke2/agent/kubelet.kubeconfig; do
  [ -r "$kubeconfig" ] || continue
  PATH=$PATH:/var/lib/rancher/rke2/bin
  have kubectl || continue
  within 20 kubectl --kubeconfig "$kubeconfig" --request-timeout=5s get runtimeclasses \
    -o 'jsonpath={range .items[*]}{.metadata.name}={.handler}{"\n"}{end}{"asked=\n"}' 2>/dev/null | log runtime-classes
done
exit 0
