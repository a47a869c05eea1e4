# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: packages
short_description: Run one package transaction
version_added: 0.1.0
author: the gpunode authors (@gpunode)
description:
  - Installs, removes and holds packages in one go, and checks that DKMS built what was installed.
  - Recovers an interrupted dpkg and waits for its lock first.
  - Runs on the controller and sends a POSIX shell script to the node; no Python is needed there.
requirements:
  - gpunode, the Python package of the same version, on the controller
options:
  packages:
    description: C(install) (a list of C(name), C(version), C(hold)), C(remove), C(may_go) (what may be
      removed along with these), C(refresh) (sources files to fetch) and C(proxy).
    type: dict
    default: {}
  wait:
    description: Seconds to wait for the package manager's lock.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Changes nothing, and says what would change.
  diff_mode:
    support: none
    description: Shows what would change or has changed, with secrets masked.
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
"""
