"""The role option `toolkit_config`: settings of the container toolkit's own file, as one transaction of commit.sh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode.core.edits import Activation
from gpunode.core.edits.commit import runtime_request
from gpunode.core.edits.engines.toolkit import CONFIG
from gpunode.core.model import Edit, NodeFacts
from gpunode.core.spec import parse_spec

LABEL = f"toolkit {CONFIG}"  # of the undo records


def toolkit_settings(value: Mapping[str, Any]) -> dict[str, bool | str]:
    """The role's value as settings, checked as gpunode.yml is.  Raises InputError."""
    return parse_spec({"toolkit": {"config": dict(value)}}, where="toolkit_config").toolkit.config.settings


def toolkit_request(facts: NodeFacts, edit: Edit, *, check: bool = False) -> dict[str, bytes]:
    """The transaction of the edit: the file must be as it was read; nothing is told of it, nothing restarts."""
    file = facts.files.get(CONFIG)
    read: Mapping[str, Any] = {CONFIG: (file.sha256, file.mode) if file else ("", 0o644)}
    return runtime_request(edit, read, Activation(unit="", verb="", config=CONFIG), label=LABEL, check=check)
