"""Kubernetes in the lab: a real control plane in a container of its own, real kubelets on the nodes (docs/lab.md)."""
