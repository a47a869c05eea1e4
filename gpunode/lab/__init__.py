"""Throw-away nodes on this machine with faked GPUs, for rehearsal and for the tests (docs/lab.md)."""

from gpunode.lab.labs import Lab, down, image_name, load_lab, platform, reset, up
from gpunode.lab.nodes import Node

__all__ = ["Lab", "Node", "down", "image_name", "load_lab", "platform", "reset", "up"]
