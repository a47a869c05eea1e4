# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: edit_file
short_description: Change files of a node in one transaction
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.edit_file
description:
  - Writes whole files, or rewrites the configuration of container engines or of the NVIDIA Container Toolkit.
  - Checks hashes under a lock, validates, replaces atomically, restarts what has to be, and rolls back
    when it is not healthy then.
options:
  expect:
    description: >-
      C(files) of it has, by engine, the SHA-256 of the files that a plan was made for; one that is another one now
      is refused where it would be edited.
    type: dict
    default: {}
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
engines:
  description: The engines whose configuration changed.
  type: list
  elements: str
  returned: when engines were asked for
stale:
  description: Files that changed since they were read, three times in a row; nothing was written.
  type: list
  elements: str
  returned: when an engine's files were to change
"""
