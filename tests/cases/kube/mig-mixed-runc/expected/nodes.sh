#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes NODE nvidia.com/gpu.present=true --overwrite
