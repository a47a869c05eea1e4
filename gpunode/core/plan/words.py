"""A step for a reader: why it is there, what it changes, what it disturbs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gpunode.core.diff import unified
from gpunode.core.edits import activation
from gpunode.core.items import ABSENT, FRESH, Key, Want, differs
from gpunode.core.items.sources import SourceFile
from gpunode.core.model import NodeFacts, PackageWant, Reason, RuntimeWish
from gpunode.core.plan.values import Case, content


def reasons(case: Case, mine: Mapping[Key, Want]) -> tuple[Reason, ...]:
    """What differs, item by item, then why it is wanted so."""
    found = [Reason(what=k.name, why=words(w, case.have[k])) for k, w in mine.items()]
    return (*found, *(r for w in mine.values() for r in w.reasons))


def words(item: Want, have: str) -> str:
    """How the node's value differs from the wanted one, for a reader: hashes of files are not for reading."""
    if not differs(item, have):
        return f"{have}, done again because of an earlier step"
    if isinstance(item.data, PackageWant):
        version = f"{'any version' if item.value == '*' else item.value}{', held' if item.data.hold else ''}"
        return f"not installed; wanted {version}" if have == ABSENT else f"{have}; wanted {version}"
    if isinstance(item.data, SourceFile):
        return _file_words(item, have)
    if isinstance(item.data, RuntimeWish | Mapping) or item.value == FRESH:
        return "differs" if re.fullmatch(r"[0-9a-f]{64}", have) else have
    if item.value == ABSENT:
        return f"{have}, to be removed"
    return f"{have or 'nothing'}; wanted {item.value}"


def _file_words(item: Want, have: str) -> str:
    if item.value == ABSENT:
        return "to be removed"
    key = f", {item.value}" if item.value.startswith("key ") else ""
    if have == ABSENT:
        return f"new file{key}"
    if key:
        return f"{have}; wanted {item.value}"
    (old, old_mode), (new, mode) = have.split(), item.value.split()
    return "differs" if old != new else f"mode {old_mode}; wanted {mode}"


def step_diff(case: Case, option: str, mine: Mapping[Key, Want]) -> str:
    """The unified diff of the files that the step changes; "" for steps that change none."""
    if option in ("edits", "config"):
        changes = [(p, b) for k in mine for p, b in case.want.edits[k.name].changes.items()]
    elif option in ("sources", "files", "mig", "mps"):
        # a key's armored text says nothing to a reader: its fingerprint stands among the reasons
        found = [w.data for w in mine.values() if isinstance(w.data, SourceFile) and not w.data.repository]
        changes = [(file.path, content(file, case.key_of)) for file in found]
    else:
        return ""
    files = case.facts.files
    return "".join(unified(files[p].data if p in files else None, after, p) for p, after in changes)


def disruption(case: Case, option: str, mine: Mapping[Key, Want]) -> str:
    """What the engines that are told of their configuration disturb: one whose files stay as they are is restarted."""
    if option in ("mig", "mps"):
        return _sharing_disruption(case, mine)
    if option != "edits":
        return ""
    facts, said = _with_new_toolkit(case), []
    for wish in (w.data for w in mine.values()):
        edit, runtime = case.want.edits[wish.runtime], facts.runtime(wish.runtime)
        if not edit.changes and runtime:
            again = {path: facts.files[path].data for path in runtime.files if path in facts.files}
            edit = replace(edit, changes=again)
        said.append(activation(facts, wish, edit).disrupts)
    return "; ".join(filter(None, said))


def _sharing_disruption(case: Case, mine: Mapping[Key, Want]) -> str:
    """Whose GPUs nothing may use meanwhile: gpunode refuses while a program does."""
    gpus = [k.name for k, w in mine.items() if k.name.startswith("GPU ") and differs(w, case.have[k])]
    if gpus:
        reboot = "" if case.spec.reboot == "never" else ", and a change of the MIG mode may need a reboot"
        return f"no program may use {', '.join(gpus)} meanwhile{reboot}"
    return "no program may use a GPU while MPS starts or ends" if any(k.option == "mps" for k in mine) else ""


def _with_new_toolkit(case: Case) -> NodeFacts:
    """The facts as they will be once the toolkit's packages are there: no daemon that runs has looked for its hook."""
    facts = case.facts
    items = ((key, item) for key, item in case.want.items.items() if (key.role, key.option) == ("toolkit", "packages"))
    if not any(differs(item, case.have[key]) for key, item in items):
        return facts
    return replace(facts, containers={name: replace(one, knows_hook=False) for name, one in facts.containers.items()})
