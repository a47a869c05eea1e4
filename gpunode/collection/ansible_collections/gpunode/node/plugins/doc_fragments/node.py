# Copyright the gpunode authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What the documentation of all actions says."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of most actions; one that differs says so itself."""

    DOCUMENTATION = r"""
notes:
  - Runs on the controller and sends a POSIX shell script to the node; no Python is needed there.
  - Where the node was asked, the result has C(changes), each with kind, name, text, and of packages was and now; in
    check mode these would be made. It has C(notes), too, the remarks of the script.
  - A failure has C(fix), what to do next, and C(log), the end of what the commands on the node printed before anything
    was rolled back. In a run of gpunode C(log_file) is the file on the controller that has all of it.
requirements:
  - gpunode, the Python package of the same version, on the controller
attributes:
  check_mode:
    support: full
    description: Changes nothing, and reports what would change.
  diff_mode:
    support: full
    description: Shows what would change or has changed, with secrets masked.
"""
