# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: activate
short_description: Load modules and start services, or reboot
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.activate
description:
  - Rebuilds the initramfs where it is stale, unloads what is in the way, loads modules, sets
    alternatives, starts services.
  - Reboots the node where nothing else helps and the policy allows it, and waits for it.
options:
  after:
    description: Results of the tasks before, as registered. In check mode, what these would change counts as changed.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Load the driver
  gpunode.node.activate:
    activate:
      load: [nvidia, nvidia_uvm]
      unload: [nouveau]
      initramfs: true
      reboot: if-needed
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
reboot_needed:
  description: Whether the node needs a reboot that was not allowed; a warning says why.
  type: bool
  returned: when it does
rebooted:
  description: Whether the node was rebooted.
  type: bool
  returned: when it was
"""
