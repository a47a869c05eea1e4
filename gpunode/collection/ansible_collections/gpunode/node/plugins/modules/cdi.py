# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cdi
short_description: Make the CDI specification of the GPUs, and keep it fresh
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.cdi
description:
  - Has nvidia-ctk make the specification, and puts it in place when it differs from what is there.
  - Enables the units that renew it after a new driver or toolkit; systemd is not reloaded.
"""

EXAMPLES = r"""
- name: Make the CDI specification
  gpunode.node.cdi:
    cdi:
      output: /etc/cdi/nvidia.yaml
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
"""
