# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan a GPU node on the controller
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
description:
  - Probes the node and makes the plan that C(gpunode plan) would make.
  - Fails with all problems when the node cannot become what the spec asks for.
options:
  spec:
    description:
      - What the node should be, as in gpunode.yml, over C(gpunode_spec) and the flat variables of the host.
      - C(ansible-doc -t role gpunode.node.node) shows the keys, under C(gpunode_spec).
    type: dict
    default: {}
  config:
    description: A gpunode.yml on the controller, over which O(spec) is merged; empty means C(gpunode_config).
    type: path
    default: ""
attributes:
  check_mode:
    support: full
    description: Reads only, so it runs in check mode too.
  diff_mode:
    support: full
    description: Gives the plan with its reasons and the differences of files, masked; stderr shows it, too.
"""

EXAMPLES = r"""
- name: Plan the node
  gpunode.node.plan:
    spec:
      driver: {branch: "580"}
  register: my_plan
"""

RETURN = r"""
plan:
  description: The plan, with its steps, reasons and problems.
  type: dict
  returned: always
variables:
  description: Every option of the roles, with the value of its step or empty.
  type: dict
  returned: always
parts:
  description: The roles that have something to do, in the order of the plan.
  type: list
  elements: str
  returned: always
chosen:
  description: The versions that were chosen, in a few words.
  type: str
  returned: on success
  sample: driver 580.178.04 open, CUDA 12.8, toolkit 1.18.1
digest:
  description: By this the tasks of the roles know the plan again.
  type: str
  returned: on success
asked:
  description: By this the next role of a play knows whether the same is asked for.
  type: str
  returned: on success
smoke:
  description: What M(gpunode.node.smoke) has to prove on this node.
  type: dict
  returned: on success
"""
