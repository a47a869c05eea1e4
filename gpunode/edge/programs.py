"""The programs of gpunode's own Python packages, wherever these lie: an environment, or what gpunode.pyz unpacked."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGES = Path(__file__).parents[2]  # the folder that holds the package gpunode


def use_installed_locale() -> None:
    """For Ansible, which starts in no locale that is not there: ssh forwards the user's own to any machine."""
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        os.environ["LC_ALL"] = "C.UTF-8"


def program_of(name: str) -> Path:
    """ansible-playbook, say: in the folder that pip's --target and gpunode.pyz use, else beside this Python."""
    own = PACKAGES / "bin" / name
    return own if own.is_file() else Path(sys.executable).with_name(name)


def python_module(name: str) -> tuple[list[str], Mapping[str, str]]:
    """The command and the variables that run a package as a program, with this Python and the packages of gpunode."""
    own = PACKAGES / "bin" / name
    if own.is_file():  # it knows its packages by itself: no program that it starts inherits them
        return [sys.executable, str(own)], {}
    path = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return [sys.executable, "-m", name], {"PYTHONPATH": path}
