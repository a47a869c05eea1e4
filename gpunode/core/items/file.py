"""Whole files that gpunode writes: the value of the role options `_sources` and `_files`."""

from __future__ import annotations

from gpunode.core.validation import rows, text

SHAPE = rows(
    "Files to have.",
    path=text("Absolute path.", required=True),
    content=text("The whole text; null removes the file."),
    mode=text("Mode, such as '0644'."),
)
