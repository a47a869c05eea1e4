#!/bin/sh
# The ends of the logs that say why a GPU does not work, for gpunode doctor.  Changes nothing.
#
# Each log stands behind a line `=== gpunode log NAME`.  What is not there is left out.

LINES=3000  # of each log, the last ones
WIDTH=1200  # bytes of a line
WHOLE=1000000  # bytes of a file that is no log: a part of it would say something else
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/wsl/lib:/usr/local/nvidia/bin
export PATH

have() { command -v "$1" >/dev/null 2>&1; }

# log NAME: standard input, if it has anything
log() {
  tail -n "$LINES" | cut -c "1-$WIDTH" >"$GPUNODE_IN/log"
  [ ! -s "$GPUNODE_IN/log" ] || { printf '=== gpunode log %s\n' "$1" && cat "$GPUNODE_IN/log"; }
}

# limited COMMAND…: ended after a while, where timeout is there
limited() {
  if have timeout; then timeout 20 "$@" 2>&1; else "$@" 2>&1; fi
}

newest() { local file; for file in "$@"; do [ ! -r "$file" ] || printf '%s\n' "$file"; done | tail -n 4; }

files() {
  local name file
  name=$1
  shift
  newest "$@" | while read -r file; do cat "$file"; done | log "$name"
}

# whole NAME FILE
whole() {
  [ -r "$2" ] && [ -s "$2" ] && [ "$(wc -c <"$2")" -le "$WHOLE" ] || return 0
  printf '=== gpunode log %s\n' "$1" && cat "$2" && echo
}

if [ -r /dev/kmsg ] && dmesg >/dev/null 2>&1; then
  dmesg | log kernel
elif have journalctl; then
  limited journalctl -k -b --no-pager -o short-iso -n "$LINES" | log kernel
fi
if have journalctl; then
  for unit in kubelet k3s k3s-agent rke2-server rke2-agent k0scontroller k0sworker snap.microk8s.daemon-kubelite \
    snap.microk8s.daemon-containerd snap.docker.dockerd $ENGINE_UNITS nvidia-persistenced nvidia-fabricmanager \
    nvidia-imex nvidia-cdi-refresh nvidia-dcgm gpunode-firstboot gpunode-mig gpunode-mps; do
    case $unit in *.socket) continue ;; esac
    unit=${unit%.service}
    set -- -u "$unit.service"
    # of the kubelet with the starts of its engine, behind which what it said of that is over
    [ "$unit" != kubelet ] || set -- _SYSTEMD_UNIT=kubelet.service + UNIT=kubelet.service _PID=1 \
      + UNIT=containerd.service _PID=1 + UNIT=crio.service _PID=1 + UNIT=docker.service _PID=1
    limited journalctl -b "$@" --no-pager -o short-iso -n "$LINES" | grep -v '^-- No entries' | log "$unit"
  done
fi
if have nvidia-smi; then
  if [ -e /proc/driver/nvidia/version ] || [ -e /dev/dxg ]; then
    limited nvidia-smi | log nvidia-smi
    # whole, of 16 GPUs too: the flags of -d, which would select, are others in each release
    limited nvidia-smi -q | (LINES=12000 && log nvidia-smi-q)
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
files kube-scheduler-manifest "$manifest"
config=$(sed -n 's/^.*--config=\([^ "]*\).*$/\1/p' "$manifest" 2>/dev/null | head -n 1)
[ -z "$config" ] || files kube-scheduler-config "$config"
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
  limited kubectl --kubeconfig "$kubeconfig" --request-timeout=5s get runtimeclasses \
    -o 'jsonpath={range .items[*]}{.metadata.name}={.handler}{"\n"}{end}{"asked=\n"}' 2>/dev/null | log runtime-classes
done
exit 0
