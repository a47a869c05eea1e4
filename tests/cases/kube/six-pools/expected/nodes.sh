#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes a1 a2 nvidia.com/device-plugin.config=default --overwrite
kubectl label nodes b1 nvidia.com/device-plugin.config=sliced --overwrite
kubectl label nodes c1 nvidia.com/device-plugin.config=mps --overwrite
kubectl label nodes d1 nvidia.com/device-plugin.config=cut --overwrite
kubectl label nodes e1 gpushare=true --overwrite
kubectl label nodes f1 nvidia.com/device-plugin.config=claims --overwrite
