# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Make sure that a node is the one a plan was made for
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.preflight
description:
  - Probes the node and fails when it is another one than the plan expects.
attributes:
  diff_mode:
    support: none
    description: It changes nothing.
  check_mode:
    support: full
    description: Reads only, so it runs in check mode too.
"""

EXAMPLES = r"""
- name: Make sure that this is the node the plan was made for
  gpunode.node.preflight:
    expect:
      distro: debian:12
      gpus: ['0000:17:00.0=10de:2330']
"""

RETURN = r"""
msg:
  description: What differs, or that nothing does.
  type: str
  returned: when something was expected
"""
