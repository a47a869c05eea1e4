#!/bin/sh
# Rendered by gpunode kube render; edit gpunode.yml instead.
set -eu
kubectl label nodes NODE gpushare=true --overwrite
