#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes NODE nvidia.com/device-plugin.config=default nvidia.com/gpu.present=true --overwrite
