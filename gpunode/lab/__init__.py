"""Throw-away nodes on this machine with faked GPUs, for rehearsal and for the tests (docs/lab.md)."""

from gpunode.lab.labs import Lab, down, load_lab, platform, reset, up
from gpunode.lab.nodes import Node

__all__ = ["Lab", "Node", "down", "load_lab", "platform", "reset", "up"]
