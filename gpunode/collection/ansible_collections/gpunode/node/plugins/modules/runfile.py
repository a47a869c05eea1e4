# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: runfile
short_description: Run NVIDIA's self-extracting installers, or take off what they installed
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.runfile
description:
  - Fetches an installer to the node, or sends it there from the controller, and compares its SHA-256 before it is run.
  - Runs it without questions, and has DKMS build the driver's modules for every kernel.
"""

EXAMPLES = r"""
- name: Fetch the driver's installer
  gpunode.node.runfile:
    fetch:
      - kind: driver
        name: NVIDIA-Linux-x86_64-580.178.04.run
        version: 580.178.04
        urls: [https://us.download.nvidia.com/tesla/580.178.04/NVIDIA-Linux-x86_64-580.178.04.run]

- name: Run it
  gpunode.node.runfile:
    install:
      - kind: driver
        name: NVIDIA-Linux-x86_64-580.178.04.run
        version: 580.178.04
        options: [--silent, --dkms]
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
"""
