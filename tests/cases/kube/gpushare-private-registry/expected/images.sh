#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
# load IMAGE HOST…: out of this machine's docker (or podman) into the engine that the host's kubelet uses
load() {
  image=$1
  shift
  save=docker
  command -v docker >/dev/null || save=podman
  for host; do
    echo "$image → $host"
    "$save" save "$image" | ssh "$host" 'if [ -S /run/k3s/containerd/containerd.sock ]; then k3s ctr images import -
      elif [ -S /run/cri-dockerd.sock ]; then docker load
      elif [ -S /run/crio/crio.sock ]; then podman load
      else ctr -n k8s.io images import -; fi'
  done
}
# shellcheck disable=SC2086 # names of hosts, one word each
load gpushare-device-plugin:local ${NODES:?hosts}
