"""Which inventory is meant where none is named: hosts.yml next to gpunode.yml, or Ansible's own default; near names."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gpunode.core.errors import InputError
from gpunode.core.late import regex

NAME = "hosts.yml"
NEAR_HOSTS = regex(r"(hosts?|inventory)(\.(ya?ml|ini|json))?(\.txt)?", re.IGNORECASE)
NEAR_SPEC = regex(r"gpu[-_]?node\.(ya?ml|json)(\.txt)?", re.IGNORECASE)


def default_inventory(folder: Path) -> tuple[str, ...]:
    """The inventory's sources, as for `-i`; () where neither the folder nor Ansible's settings name one.

    Ansible's settings are ANSIBLE_INVENTORY and `inventory` of ansible.cfg, read by Ansible itself; /etc/ansible/hosts,
    which it takes where nobody has said anything, is not taken.
    """
    if (folder / NAME).is_file():
        return (str(folder / NAME),)
    if not os.environ.get("ANSIBLE_INVENTORY") and not any(path.exists() for path in _settings()):
        return ()  # Ansible's settings take a third of a second to import
    from ansible.config.manager import ConfigManager

    sources, origin = ConfigManager().get_config_value_and_origin("DEFAULT_HOST_LIST")
    return tuple(map(str, sources)) if origin != "default" else ()


def own_file(folder: Path, name: str, near: re.Pattern[str], option: str) -> Path | None:
    """The folder's file.  Raises InputError where it has none, but one of a near name, or one above it has the file."""
    if (folder / name).exists():
        return folder / name
    other = None
    with contextlib.suppress(OSError):
        other = next(_near(folder, near, name), None)
    if other:
        raise InputError(
            f"there is {other}, which is not read unless it is named, and no {folder / name}",
            expected=f"{name} in the current folder, or what counts named by {option}",
            fix=f"{option} {other}",
        )
    return None


def _near(folder: Path, names: re.Pattern[str], name: str) -> Iterator[Path]:
    """Those that may be meant: of the folder, then of those above it, up to the one with .git, where a site ends."""
    yield from sorted(path for path in folder.iterdir() if names.fullmatch(path.name))
    for _ in folder.resolve().parents:
        if (folder / ".git").exists():
            return
        folder /= ".."
        if (folder / name).is_file():
            yield folder / name


def _settings() -> tuple[Path, ...]:
    """Where Ansible looks for ansible.cfg (ansible.config.manager.find_ini_config_file)."""
    named = os.environ.get("ANSIBLE_CONFIG")
    return (
        *((Path(named),) if named else ()),
        Path("ansible.cfg"),
        Path("~/.ansible.cfg").expanduser(),
        Path("/etc/ansible/ansible.cfg"),
    )
