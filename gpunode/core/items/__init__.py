"""Managed things, a module per kind: what is wanted, what a node has, the value of its step, its request."""
