# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Run one package transaction
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.packages
description:
  - Installs, removes and holds packages in one go, and checks that DKMS built what was installed.
  - Recovers an interrupted dpkg and waits for its lock first.
options:
  wait:
    description: Seconds to wait for the package manager's lock.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Install the toolkit
  gpunode.node.packages:
    packages:
      install:
        - {name: nvidia-container-toolkit, version: 1.18.1-1, hold: true}
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
installed:
  description: What was installed, in a few words.
  type: str
  returned: when packages were installed
"""
