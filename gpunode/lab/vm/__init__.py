"""Nodes that boot: QEMU with firmware, the distribution's own kernel, and PCI devices that a program of ours plays.

`pci` and `guest` run in the node's container, next to QEMU, with nothing but Python's library; the rest runs here.
"""
