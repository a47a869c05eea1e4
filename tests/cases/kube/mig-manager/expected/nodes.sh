#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes -l gpu=a nvidia.com/device-plugin.config=small nvidia.com/mig.config=small nvidia.com/gpu.deploy.client=true --overwrite
kubectl label nodes -l gpu=b nvidia.com/device-plugin.config=mixed nvidia.com/mig.config=mixed nvidia.com/gpu.deploy.client=true --overwrite
kubectl label nodes -l gpu=c nvidia.com/device-plugin.config=whole nvidia.com/mig.config=all-disabled nvidia.com/gpu.deploy.client=true --overwrite
