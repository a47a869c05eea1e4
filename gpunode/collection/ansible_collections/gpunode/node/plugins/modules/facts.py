# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: facts
short_description: Find out what a GPU node has
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
description:
  - Sends the probe, which changes nothing, and gives back the facts in its text.
options:
  sections:
    description: Sections of the probe to ask for; empty means all.
    type: list
    elements: str
    default: []
  text:
    description:
      - Give back what the probe printed, too. It has configuration files with their passwords, so use C(no_log).
    type: bool
    default: false
attributes:
  diff_mode:
    support: none
    description: It changes nothing.
  check_mode:
    support: full
    description: Reads only, so it runs in check mode too.
"""

EXAMPLES = r"""
- name: Probe the node
  gpunode.node.facts:
  register: found
"""

RETURN = r"""
probe:
  description: What the probe printed.
  type: str
  returned: when O(text) is true
facts:
  description: The facts that were found, of configuration files the hash and size alone.
  type: dict
  returned: always
"""
