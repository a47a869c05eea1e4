#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes NODE nvidia.com/gpu.present=true nvidia.com/device-plugin.config=inference --overwrite
kubectl taint nodes NODE nvidia.com/gpu=present:NoSchedule --overwrite
