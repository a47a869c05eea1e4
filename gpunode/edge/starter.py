"""`gpunode init`: hosts → inventory variables, and files that nobody loses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpunode.core.errors import InputError, RefusedError
from gpunode.core.spec import parse_spec
from gpunode.edge.ansible.inventory import inventory_vars
from gpunode.edge.detect import Detected

SPEC, INVENTORY = "gpunode.yml", "hosts.yml"


def refuse_to_overwrite(folder: Path, *, force: bool) -> None:
    """Raise RefusedError when one of the files is there, unless `force`."""
    there = [str(folder / name) for name in (SPEC, INVENTORY) if (folder / name).exists()]
    if there and not force:
        raise RefusedError(
            f"{' and '.join(there)} exists" if len(there) == 1 else f"{' and '.join(there)} exist",
            expected="a folder without them",
            fix="choose another folder by -o, or replace what is there by --force",
        )


def host_variables(hosts: Sequence[Detected]) -> dict[str, dict[str, Any]]:
    """Each host's Ansible variables, without those that say what Ansible does anyway."""
    found = {}
    for host in hosts:
        assert host.target  # find_hosts gives one to each
        variables = inventory_vars(host.target)
        plain = {"ansible_host": host.host, "ansible_connection": "ssh", "ansible_become_user": "root"}
        if variables["ansible_connection"] == "local":
            plain["ansible_host"] = variables["ansible_host"]
        found[host.host] = {key: value for key, value in variables.items() if plain.get(key) != value}
    return found


def write_files(folder: Path, texts: Mapping[str, str], *, force: bool) -> None:
    """Write the files whole, once the spec among them is a valid one; only `force` replaces a file.

    Raises InputError, RefusedError.
    """
    import yaml

    parse_spec(yaml.safe_load(texts[SPEC]), where=SPEC)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.write_text(text, encoding="utf-8")
            try:
                if force:
                    temporary.replace(folder / name)
                else:
                    os.link(temporary, folder / name)  # fails where a file has come since
            finally:
                temporary.unlink(missing_ok=True)
    except FileExistsError:
        refuse_to_overwrite(folder, force=False)
        raise InputError(f"{folder} is no folder", fix="choose another one by -o") from None
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}", fix="choose another folder by -o") from error
