# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smoke
short_description: Use the GPUs for real
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.smoke
description:
  - Runs nvidia-smi, nvcc, nvidia-container-cli, and containers through the nvidia runtime; leaves
    nothing behind.
attributes:
  diff_mode:
    support: none
    description: It changes nothing.
  check_mode:
    support: full
    description: Not run in check mode, because it starts containers.
"""

EXAMPLES = r"""
- name: Prove that Docker's containers get the GPUs
  gpunode.node.smoke:
    smoke:
      runtimes: [docker]
      default_runtime: {docker: nvidia}
      gpus: 8
"""

RETURN = r"""
checks:
  description: The checks, each with id, status, message and fix.
  type: list
  elements: dict
  returned: when checks have run
msg:
  description: How many passed, or which failed.
  type: str
  returned: when checks have run
"""
