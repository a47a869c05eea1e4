# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: component
short_description: Edit the files of kube-scheduler or of the kubelet of a node
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.component
description:
  - Has a node's kube-scheduler ask gpushare's extender, or gives its kubelet the settings of a GPU node;
    undoes that to the byte.
  - The configuration is written before the manifest that names it, the backup lies outside the folder of manifests.
  - Waits until the program has restarted, answers and stays up, and rolls back when it does not.
options:
  config:
    description: A gpunode.yml on the controller. What it and C(gpunode_spec) say under C(kubernetes.gpushare) of where
      the extender answers holds for C(scheduler), unless C(scheduler) says otherwise.
    type: path
    default: ""
"""

EXAMPLES = r"""
- name: Have kube-scheduler ask gpushare's extender
  gpunode.node.component:
    scheduler:
      state: present
      proxy_mode: iptables
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
notes:
  description: Remarks of the script, and why each thing changes.
  type: list
  elements: str
  returned: when the node was asked
stale:
  description: Files that changed since they were read, three times in a row; nothing was written.
  type: list
  elements: str
  returned: when files were to change
"""
