"""Kubernetes' own components on a host: kube-scheduler and kubelet."""
