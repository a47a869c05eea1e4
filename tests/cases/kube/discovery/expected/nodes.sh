#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes NODE feature.node.kubernetes.io/pci-10de.present=true --overwrite
