# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: result
short_description: Report what the roles of gpunode have done to a host
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
description:
  - The last task of each role; what it returns is registered as C(gpunode_result), for the tasks and roles that follow.
  - It covers all roles of gpunode that have run on the host so far in this run of ansible-playbook.
attributes:
  check_mode:
    support: full
    description: Reads only, so it runs in check mode too; C(parts) and C(changes) are those that would follow.
  diff_mode:
    support: none
    description: It changes nothing.
"""

EXAMPLES = r"""
- name: Set the node up
  ansible.builtin.import_role:
    name: gpunode.node.node

- name: Restart the exporter after a new driver
  ansible.builtin.service:
    name: my-gpu-exporter
    state: restarted
  when: "'driver' in gpunode_result.parts"
"""

RETURN = r"""
anything_changed:
  description: Whether any part was changed.
  type: bool
  returned: always
  sample: true
parts:
  description: The parts that were changed, out of driver, fabric, cuda, toolkit, sharing, runtime.
  type: list
  elements: str
  returned: always
  sample: [driver, runtime]
left_out:
  description: Parts with steps in the plan that no role or tag has run.
  type: list
  elements: str
  returned: always
  sample: [toolkit]
changes:
  description: Each thing changed, or that would be in check mode, with kind, name, text, and of packages was and now.
  type: list
  elements: dict
  returned: always
  sample: ["installed nvidia-open 580.178.04-1", "loaded nvidia"]
rebooted:
  description: Whether the node was rebooted.
  type: bool
  returned: always
reboot_needed:
  description: Whether a reboot is pending, because C(reboot) is never.
  type: bool
  returned: always
engines:
  description: Container engines that were given another configuration, and restarted or reloaded for it.
  type: list
  elements: str
  returned: always
  sample: [containerd]
checks:
  description: The checks of M(gpunode.node.smoke); empty where it did not run.
  type: list
  elements: dict
  returned: always
  sample: [{id: driver.smi, status: passed, message: "1 GPU: NVIDIA H100 80GB HBM3", fix: ""}]
driver:
  description: Version of the driver that is loaded; empty where none is.
  type: str
  returned: always
  sample: 580.178.04
cuda:
  description: Versions of the CUDA toolkits.
  type: list
  elements: str
  returned: always
  sample: ["12.8"]
toolkit:
  description: Version of the NVIDIA Container Toolkit; empty where there is none.
  type: str
  returned: always
  sample: 1.18.1
gpus:
  description: Names of the GPUs; their PCI ids where no driver is loaded.
  type: list
  elements: str
  returned: always
  sample: [NVIDIA H100 80GB HBM3]
msg:
  description: The same in a sentence.
  type: str
  returned: always
  sample: "driver 580.178.04, CUDA 12.8, toolkit 1.18.1; no change"
"""
