#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes a1 nvidia.com/device-plugin.config=default nvidia.com/gpu.present=true --overwrite
kubectl label nodes c1 nvidia.com/device-plugin.config=mps nvidia.com/mps.capable=true nvidia.com/gpu.present=true --overwrite
kubectl label nodes e1 gpushare=true nvidia.com/gpu.present=true --overwrite
kubectl label nodes f1 nvidia.com/device-plugin.config=claims nvidia.com/gpu.present=true --overwrite
