# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: activate
short_description: Load modules and start services, or reboot
version_added: 0.1.0
author: the gpunode authors (@gpunode)
description:
  - Rebuilds the initramfs where it is stale, unloads what is in the way, loads modules, sets
    alternatives, starts services.
  - Reboots the node where nothing else helps and the policy allows it, and waits for it.
  - Runs on the controller and sends a POSIX shell script to the node; no Python is needed there.
requirements:
  - gpunode, the Python package of the same version, on the controller
options:
  activate:
    description: C(load), C(unload), C(initramfs), C(links), C(version), C(flavour), C(services), C(enable) (at boot),
      C(alternatives), C(reboot) (never, if-needed, always), and C(reboot_controller) (true lets it reboot the machine
      Ansible runs on, known by its boot id).
    type: dict
    default: {}
  after:
    description: Results of the tasks before, as registered. In check mode, what these would change counts as changed.
    type: list
    elements: dict
    default: []
  reboot_timeout:
    description: Seconds that the node has to come back.
    type: int
    default: 900
attributes:
  check_mode:
    support: full
    description: Changes nothing, and says what would change.
  diff_mode:
    support: none
    description: Shows what would change or has changed, with secrets masked.
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
changes:
  description: One sentence for each thing changed, or that would change in check mode.
  type: list
  elements: str
  returned: when the node was asked
notes:
  description: Remarks of the script.
  type: list
  elements: str
  returned: when the node was asked
fix:
  description: What to do next.
  type: str
  returned: on failure
log:
  description: The end of what the commands on the node printed.
  type: list
  elements: str
  returned: on failure
reboot_needed:
  description: Whether the node needs a reboot that was not allowed; a warning says why.
  type: bool
  returned: when it does
"""
