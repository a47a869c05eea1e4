"""The files of the knowledge: those of the folder $GPUNODE_KNOWLEDGE, where it has them, else the package's."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from gpunode.core.errors import InputError

T = TypeVar("T")


def knowledge_text(name: str) -> str:
    """The text of one file of the knowledge: that of the folder $GPUNODE_KNOWLEDGE, where it has one, else ours."""
    folder = os.environ.get("GPUNODE_KNOWLEDGE")
    own = Path(folder) / f"{name}.toml" if folder else None
    try:
        if own and own.exists():
            return own.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {own}: {error}", fix="fix the file, or unset GPUNODE_KNOWLEDGE") from error
    return (files("gpunode") / "knowledge" / f"{name}.toml").read_text(encoding="utf-8")


def read(parse: Callable[..., T], *names: str) -> T:
    """What `parse` makes of files of the knowledge.  Raises InputError, also for a row that is not whole."""
    try:
        return parse(*map(table, names))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"a row has no {error}" if isinstance(error, KeyError) else str(error)
        fix = "compare it with the other rows of its table"
        raise InputError(f"{', '.join(f'{name}.toml' for name in names)}: {what}", fix=fix) from error


def table(name: str) -> Any:
    """The parsed file.  Raises InputError."""
    import tomli

    try:
        return tomli.loads(knowledge_text(name))
    except tomli.TOMLDecodeError as error:
        raise InputError(
            f"{name}.toml in $GPUNODE_KNOWLEDGE: {error}", fix="make it again, or unset GPUNODE_KNOWLEDGE"
        ) from error
