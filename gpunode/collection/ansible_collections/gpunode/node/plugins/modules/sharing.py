# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sharing
short_description: Partition GPUs into MIG instances, or share them by MPS
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.sharing
description:
  - Brings MIG mode and instances of each GPU to what is wished, and leaves a unit that does so at every boot.
  - Refuses, and names the processes, while a GPU or an instance that has to change is in use.
  - Reboots the node where only that changes the MIG mode, as far as C(reboot) of the value allows.
  - Or runs the MPS control daemon as a unit of systemd.
"""

EXAMPLES = r"""
- name: Cut a GPU into two instances
  gpunode.node.sharing:
    mig:
      gpus:
        - slot: "0000:17:00.0"
          mode: "on"
          instances:
            - {profile: 3g.40gb, id: 9, start: 0}
            - {profile: 3g.40gb, id: 9, start: 4}
      reboot: if-needed
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
"""
