"""`python -m gpunode.lab.nvml`: build the library and print its path."""

import sys

from gpunode.lab import nvml

print(nvml.build(log=lambda line: print(line, file=sys.stderr)))
