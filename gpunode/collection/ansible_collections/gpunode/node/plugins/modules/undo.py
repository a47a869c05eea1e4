# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation only: the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: undo
short_description: Undo what gpunode has changed on a node
version_added: 0.1.0
author: the gpunode authors (@gpunode)
extends_documentation_fragment:
  - gpunode.node.node
  - gpunode.node.values.undo
description:
  - Reads the journal of the node, and restores packages, files, units, modules and settings.
  - What others have changed since stays as it is, and is named in C(notes).
"""

EXAMPLES = r"""
- name: Remove everything of gpunode
  gpunode.node.undo:
    what:
      verb: uninstall

- name: Undo the last run
  gpunode.node.undo:
    what:
      verb: rollback
"""

RETURN = r"""
msg:
  description: What was done, in a sentence.
  type: str
  returned: always
notes:
  description: What stays as it is, and why.
  type: list
  elements: str
  returned: when the node was asked
"""
