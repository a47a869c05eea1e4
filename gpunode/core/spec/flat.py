"""The keys of gpunode.yml as variables of an inventory, one by one: `gpunode_driver_branch` is driver.branch.

Kubernetes and the rollout are affairs of the command line, and have none.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from gpunode.core.errors import InputError
from gpunode.core.late import dataclass
from gpunode.core.meant import nearest
from gpunode.core.spec import Spec, Whole
from gpunode.core.untrusted import load_yaml

_LEFT_OUT = ("rollout", "kubernetes", "accept")
_OPENED = ("runtimes", "sharing")  # what is in these has a name of its own: gpunode_docker_default_runtime
PREFIX = "gpunode_"
OTHERS = (  # variables of the roles and playbooks that are no keys
    "gpunode_spec gpunode_config gpunode_verify gpunode_plan gpunode_result gpunode_expect gpunode_values "
    "gpunode_smoke gpunode_hosts gpunode_undo gpunode_scheduler gpunode_kubelet gpunode_control_plane gpunode_run "
    "gpunode_controller gpunode_generation gpunode_timeout gpunode_break_lock gpunode_secrets"
).split()


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One of them, with the key that it sets, and that key's type, default and meaning."""

    name: str
    path: tuple[str, ...]
    hint: Any
    default: Any
    doc: str

    @property
    def key(self) -> str:
        return ".".join(self.path)


@cache
def flat_variables() -> Mapping[str, Variable]:
    """All of them, by name, in the order of gpunode.yml.

    >>> flat_variables()["gpunode_mig_profiles"].key
    'sharing.mig.profiles'
    """
    return {one.name: one for one in _variables(Spec, ())}


def _variables(kind: type, path: tuple[str, ...]) -> Iterator[Variable]:
    hints, default = typing.get_type_hints(kind), kind()
    for field in dataclasses.fields(kind):
        hint, here = hints[field.name], (*path, field.name)
        if here[0] in _LEFT_OUT:
            continue
        if is_record(hint) and (len(here) == 1 or (len(here) == 2 and here[0] in _OPENED)):
            yield from _variables(hint, here)
        else:
            named = here[1:] if len(here) == 3 else here
            name = PREFIX + "_".join(named)
            yield Variable(
                name=name, path=here, hint=hint, default=getattr(default, field.name), doc=field.metadata["doc"]
            )


def is_record(hint: Any) -> bool:
    """Whether the type has keys of its own."""
    return dataclasses.is_dataclass(hint) and isinstance(hint, type)


def flat_spec(variables: Mapping[str, Any]) -> dict[str, Any]:
    """What these variables say, as gpunode.yml would; an empty text and null say nothing, as in a survey of AWX.

    Each replaces its key as a whole, also where that is a mapping.

    >>> flat_spec({"gpunode_driver_branch": 580, "gpunode_cuda_versions": "12.8, 13.0", "other": 1})
    {'driver': {'branch': 580}, 'cuda': {'versions': ['12.8', '13.0']}}
    """
    found: dict[str, Any] = {}
    for one in flat_variables().values():
        value = variables.get(one.name)
        if value is None or value == "":
            continue
        inner = found
        for key in one.path[:-1]:
            inner = inner.setdefault(key, {})
        read = _read(value, one.hint)
        inner[one.path[-1]] = Whole(read) if isinstance(read, Mapping) else read
    return found


def clashes(variables: Mapping[str, Any], spec: Any) -> list[str]:
    """A sentence for each variable that says something else than `spec`, over which it wins."""
    found = []
    for name, one in flat_variables().items():
        mine, theirs = _at(flat_spec({name: variables.get(name)}), one.path), _at(spec, one.path)
        if mine is not None and theirs is not None and _text(mine) != _text(theirs):
            found.append(f"{name} ({_shown(mine)}) wins over {one.key} ({_shown(theirs)})")
    return found


def in_variables(text: str) -> str:
    """A text that names keys of gpunode.yml, with the variables in their place.

    >>> in_variables("add --no-load, or image.load: false in gpunode.yml")
    'add --no-load, or gpunode_image_load: false'
    """
    names = {one.key: one.name for one in flat_variables().values()}
    keys = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"\b({keys})(: \w+)? in gpunode\.yml", lambda found: names[found[1]] + (found[2] or ""), text)


def misspelt(names: Collection[str], of_ansible: Collection[str] = ()) -> list[str]:
    """A sentence for each name that is nearly one of these variables, or of those of connections, and none."""
    ours, found = [*flat_variables(), *OTHERS], []
    for owner, prefix, known, cutoff in (("gpunode", PREFIX, ours, 0.85), ("Ansible", "ansible_", of_ansible, 0.9)):
        for name in names:
            if name.startswith(prefix) and name not in known and not name.startswith("gpunode_done_"):
                near = _near(name, known, cutoff)
                found += [f"{name} is no variable of {owner}: did you mean {one}?" for one in near]
    return found


def unknown_parameters(names: Collection[str]) -> list[str]:
    """A sentence for each parameter of a role of gpunode that has not the prefix, which Ansible refuses."""
    found = []
    for name in names:
        if not name.startswith(PREFIX):
            near = _near(PREFIX + name, [*flat_variables(), *OTHERS], 0.85)
            hint = f"did you mean {near[0]}?" if near else f"their names begin with {PREFIX}"
            found.append(f"{name} is no parameter of gpunode's roles: {hint}")
    return found


def _near(name: str, known: Collection[str], cutoff: float) -> list[str]:
    """The one that the name is nearly, or is the beginning of; [] for none."""
    return nearest(name, known, cutoff=cutoff) or [one for one in known if one.startswith(f"{name}_")][:1]


def _read(value: Any, hint: Any) -> Any:
    """A text of the command line or a survey, as the key's type has it; what does not fit is left to the spec."""
    if not isinstance(value, str):
        return value
    if typing.get_origin(hint) is tuple and not value.lstrip().startswith("["):
        return re.split(r"[,\s]+", value.strip(", \n"))
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if any(kind is str or typing.get_origin(kind) is Literal for kind in kinds):
        return value
    try:
        return load_yaml(value, "the value")
    except InputError:
        return value


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _text(value: Any) -> Any:
    """For comparing: 580 is the same as '580'."""
    if isinstance(value, list | tuple):
        return [_text(one) for one in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _shown(value: Any) -> str:
    return "…" if "://" in str(value) else str(value)  # a URL may have a password
