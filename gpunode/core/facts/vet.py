"""What of the facts fits its grammar: that of a text stands at its field (core/model/node.py).

A node is not trusted: its facts become values of a playbook, names in requests, URLs and sentences.  `vetted` is the
one place between a probe and everything that reads facts.  A text that does not fit its grammar is left out, and
reported: as malformed where the whole node rests on it (a plan refuses that node); as invalid where it is of one thing
among others, such as a GPU, a file or an engine (the rest of the node goes on without it); as a note where no decision
rests on the fact.  Prose, such as the name of a distribution, is kept with its control characters made visible.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from functools import cache
from operator import is_
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from gpunode.core.grammar import PATH, Grammar, Prose
from gpunode.core.late import MISSING, dataclass, fields, is_dataclass, replace
from gpunode.core.model import Invalid, Kernel, NodeFacts
from gpunode.core.model.node import volatile_fields
from gpunode.core.printable import printable, shortened

# what to do about a value that was left out
LOOK = "look at that section of the probe (gpunode detect HOST --save DIR) and fix its cause on the node"


@dataclass(frozen=True)
class TextMapping:
    """A mapping with texts as keys, and texts or objects as values."""

    key: Grammar
    value: Rule | None


Rule = Grammar | Prose | TextMapping


@cache
def rules(kind: type) -> Mapping[str, Rule | None]:
    """Field → what texts in it may look like, as its type says; None where it holds none, or objects."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: _rule(hints[one.name]) for one in fields(kind)}


def _rule(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    parts = get_args(hint)
    if get_origin(hint) is Mapping:
        return TextMapping(*map(_rule, parts))
    return _rule(parts[0]) if get_origin(hint) is tuple else None


@cache
def defaults(kind: type) -> Mapping[str, Any]:
    """Field → its default; MISSING where it has none."""
    every = fields(kind)
    return {one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in every}


# field of NodeFacts → the section of the probe that it is read from (docs/probe.md); others are called as their section
_SECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("hostname", "arch", "boot_id", "init", "virtualization", "tegra", "user"), "system"),
    **dict.fromkeys(("gpus", "nvswitches"), "pci"),
    **dict.fromkeys(("package_manager", "broken_packages", "lost_programs"), "packages"),
    "distro": "os_release",
    "nvml": "nvidia_smi",
    "cuda_default": "cuda",
    "package_lock": "locks",
    "lease": "locks",
    "rootless_docker": "containers",
    "services": "units",
    "modules": "driver",
    "device_nodes": "gpu_containers",
    "nvlink_inactive": "nvlink",
    **dict.fromkeys(("not_started", "kernel_faults"), "xids"),
    **dict.fromkeys(("pcie", "rdma", "hidden"), "links"),
    "unfinished": "journal",
}

_VOLATILE = volatile_fields(NodeFacts)
# what all of a plan rests on: of an object all that it says itself, of those in the second row also what it lists
_WHOLE = frozenset(("arch", "init", "virtualization", "driver", "package_manager"))
_WITH_ALL_PARTS = frozenset(("distro", "unfinished"))


def vetted(facts: NodeFacts) -> NodeFacts:
    """The facts without what does not fit its grammar, reported in `malformed`, `invalid` or `notes`."""
    doubts: dict[tuple[str, str, str, str], list[str]] = {}
    changed = {}
    for name, rule in rules(NodeFacts).items():
        section = _SECTIONS.get(name, name)

        def doubt(text: str, grammar: Grammar, part: Any, name: str = name, section: str = section) -> None:
            kernel = isinstance(part, Kernel) and part.release == text  # packages are chosen, modules built for it
            whole = name in _WITH_ALL_PARTS or (name in _WHOLE and part is None) or kernel
            kind = "notes" if name in _VOLATILE else "malformed" if whole else "invalid"
            thing = _called(part) if kind == "invalid" else ""
            doubts.setdefault((kind, section, thing, grammar.what), []).append(text)

        before = getattr(facts, name)
        after = _vet(rule, before, doubt)
        if after is not before:
            changed[name] = defaults(NodeFacts)[name] if after is _GONE else after
    if not changed:
        return facts
    reported: dict[str, list[str]] = {"malformed": [], "notes": []}
    invalid = []
    for (kind, section, thing, what), texts in doubts.items():
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        words = f"{shortened(texts[0])} is not a valid {what}{more}"
        if kind == "invalid":
            invalid.append(Invalid(section=section, thing=thing, what=words))
        else:
            reported[kind].append(f"{section}: {words}")
    kept = replace(facts, **changed)
    return replace(
        kept,
        malformed=(*kept.malformed, *reported["malformed"]),
        invalid=(*kept.invalid, *invalid),
        notes=(*kept.notes, *reported["notes"]),
    )


def _called(part: Any) -> str:
    """What a thing is called: its first field, of a path the folder where that is none; "" of a text, or without."""
    if not is_dataclass(part):
        return ""
    kind: Any = type(part)
    name = fields(kind)[0].name
    rule, called = rules(kind)[name], str(getattr(part, name))
    names = (called, posixpath.dirname(called) if rule is PATH else "")
    return next((one for one in names if not isinstance(rule, Grammar) or rule.fits(one)), "")


# ---------------------------------------------------------------- vetting values

_GONE = object()
_Doubt = Callable[[str, Grammar, Any], None]


def _vet(rule: Rule | None, value: Any, doubt: _Doubt, part: Any = None) -> Any:
    """The same object where nothing is wrong with it, _GONE where nothing of it can stay.

    `part` is the thing among others that it is of: the outermost element of a tuple or mapping.
    """
    if isinstance(value, str):
        return _text(rule, value, doubt, part)
    if isinstance(value, tuple):
        kept = tuple(
            new for one in value if (new := _vet(rule, one, doubt, one if part is None else part)) is not _GONE
        )
        return value if len(kept) == len(value) and all(map(is_, kept, value)) else kept
    if isinstance(value, Mapping):
        return _mapping(rule, value, doubt, part)
    return _object(value, doubt, part) if is_dataclass(value) else value


def _text(rule: Rule | None, text: str, doubt: _Doubt, part: Any) -> Any:
    if isinstance(rule, Grammar):
        if rule.fits(text):
            return text
        doubt(text, rule, part)
        return _GONE
    assert isinstance(rule, Prose)
    shown = printable(text)
    return shown if len(shown) <= rule.limit else f"{shown[: rule.limit - 1]}…"


def _mapping(rule: Rule | None, value: Mapping[str, Any], doubt: _Doubt, part: Any) -> Mapping[str, Any]:
    assert isinstance(rule, TextMapping)
    kept = {}
    for key, one in value.items():
        mine = one if part is None else part
        if not rule.key.fits(key):
            doubt(key, rule.key, mine)
        elif (new := _vet(rule.value, one, doubt, mine)) is not _GONE:
            kept[key] = new
    return value if len(kept) == len(value) and all(kept[key] is value[key] for key in kept) else kept


def _object(value: Any, doubt: _Doubt, part: Any) -> Any:
    """A field that does not fit gets its default; where it has none, the whole object goes."""
    kind: Any = type(value)
    changed = {}
    for name, rule in rules(kind).items():
        before = getattr(value, name)
        after = _vet(rule, before, doubt, part)
        if after is _GONE:
            after = defaults(kind)[name]
            if after is MISSING:
                return _GONE
        if after is not before:
            changed[name] = after
    return replace(value, **changed) if changed else value
