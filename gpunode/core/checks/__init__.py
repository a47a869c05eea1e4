"""Checks with stable ids: what verify, check-boot and kube verify report."""
