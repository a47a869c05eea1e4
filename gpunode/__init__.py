"""gpunode: machines with NVIDIA GPUs become nodes that containers and Kubernetes can use."""

__version__ = "0.1.0"
