# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: edit_file
short_description: Change files of a node in one transaction
version_added: 0.1.0
author: the gpunode authors (@gpunode)
description:
  - Writes whole files, or rewrites the configuration of container engines or of the NVIDIA Container Toolkit.
  - Checks hashes under a lock, validates, replaces atomically, restarts what has to be, and rolls back
    when it is not healthy then.
  - Runs on the controller and sends a POSIX shell script to the node; no Python is needed there.
requirements:
  - gpunode, the Python package of the same version, on the controller
options:
  files:
    description: Files to have, each with C(path), C(content) (null removes the file) and C(mode).
    type: list
    elements: dict
    default: []
  runtimes:
    description: Engines to configure, each with C(runtime), C(default_runtime), C(cdi), C(cgroup_driver) and
      C(expect); one transaction each.
    type: list
    elements: dict
    default: []
  toolkit:
    description: Settings of the NVIDIA Container Toolkit's own file, by the keys of C(toolkit.config) in gpunode.yml.
    type: dict
    default: {}
  recover:
    description: Finish or undo what an interrupted run left.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Changes nothing, and says what would change.
  diff_mode:
    support: full
    description: Shows what would change or has changed, with secrets masked.
"""

EXAMPLES = r"""
- name: Give Docker the nvidia runtime
  gpunode.node.edit_file:
    runtimes:
      - runtime: docker
        default_runtime: nvidia
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
stale:
  description: Files that changed since they were read, three times in a row; nothing was written.
  type: list
  elements: str
  returned: when an engine's files were to change
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
