#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes -l cloud.google.com/gke-nodepool=gpu-small nvidia.com/device-plugin.config=sliced --overwrite
kubectl taint nodes -l cloud.google.com/gke-nodepool=gpu-small nvidia.com/gpu=present:NoSchedule --overwrite
kubectl label nodes -l 'gpu in (a, b), !spot' nvidia.com/device-plugin.config=whole --overwrite
kubectl taint nodes -l 'gpu in (a, b), !spot' nvidia.com/gpu=present:NoSchedule --overwrite
