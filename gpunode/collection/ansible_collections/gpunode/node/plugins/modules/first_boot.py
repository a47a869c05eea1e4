# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: first_boot
short_description: Leave what loads and proves the driver at the first boot with a GPU
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.first_boot
description:
  - Writes the program that gpunode-firstboot.service runs, on a machine that is prepared without its GPU.
  - The unit itself is a file of the role driver, and is enabled by M(gpunode.node.activate).
"""

EXAMPLES = r"""
- name: Leave the program of the first boot
  gpunode.node.first_boot:
    first_boot:
      activate:
        load: [nvidia, nvidia_uvm]
      smoke:
        gpus: found
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
"""
