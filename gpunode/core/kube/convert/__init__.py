"""Old manifests → today's form: the same YAML with its comments, and what was changed and why."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from gpunode.core.errors import InputError
from gpunode.core.knowledge.kubernetes import KubeKnowledge, Server
from gpunode.core.knowledge.kubernetes_old import OldForms
from gpunode.core.knowledge.scheduler import SchedulerRules
from gpunode.core.kube.checks.objects import check_objects, is_object, title
from gpunode.core.kube.convert.config import convert_config
from gpunode.core.kube.convert.objects import convert_api, ended
from gpunode.core.kube.convert.pod import convert_pods, superseded
from gpunode.core.kube.convert.rights import missing_rights
from gpunode.core.kube.plain import plain
from gpunode.core.model import Problem


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that became another: of which object, what, and why."""

    object: str
    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Old:
    """All that is known of old forms, and the server that the new ones are for."""

    server: Server
    forms: OldForms
    knowledge: KubeKnowledge
    rules: SchedulerRules


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The manifest anew; `problems` are left to a person."""

    text: str
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]


def convert(text: str, old: Old, *, name: str = "the manifest") -> Converted:
    """A stream of YAML documents, or one JSON object, in the form that the server takes.

    Without changes the text stays as it is, byte by byte.  Raises InputError for what is no YAML.
    """
    documents = _read(text, name)
    changes: list[Change] = []
    problems: list[Problem] = []
    kept: list[Any] = []
    for document in documents:
        items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
        stay = [_converted(item, old, changes, problems) for item in (items if isinstance(items, list) else [document])]
        if isinstance(items, list):
            items[:] = [item for item in stay if item is not None]
            kept.append(document)
        else:
            kept += [item for item in stay if item is not None]
    objects = [item for document in plain(kept) for item in _objects(document)]
    problems += [problem for item in objects for problem in superseded(item, old.forms, old.knowledge.images)]
    problems += [*check_objects(objects), *missing_rights(objects, old.knowledge.needs)]
    return Converted(
        text=_written(kept, text) if changes else text, changes=tuple(changes), problems=tuple(dict.fromkeys(problems))
    )


def _converted(item: Any, old: Old, changes: list[Change], problems: list[Problem]) -> Any:
    """The object, changed in place; None for one that is taken out."""
    if not is_object(item):
        problems.append(Problem(what=f"{str(item)[:60]!r} is no object", fix="every object has apiVersion and kind"))
        return item
    name = title(item)
    if over := ended(item, old.forms, old.server):
        if over.out:
            changes.append(Change(object=name, what="taken out", why=f"gone since {over.gone}: {over.instead}"))
            return None
        what = f"{name}: {item['apiVersion']} is gone since {over.gone}, and gpunode does not convert it"
        problems.append(Problem(what=what, fix=over.instead))
        return item
    config = convert_config(item, old.server.minor, old.rules)
    if config is not None:
        item, told, left = config
        problems += left
    else:
        told = [*convert_api(item, old.forms, old.server), *convert_pods(item, old.forms, old.server, old.rules)]
    changes += [Change(object=name, what=what, why=why) for what, why in told]
    return item


def _objects(document: Any) -> Iterator[Any]:
    items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
    yield from (item for item in (items if isinstance(items, list) else [document]) if is_object(item))


# ---------------------------------------------------------------- YAML with its comments


def _read(text: str, name: str) -> list[CommentedMap]:
    try:
        documents = [item for item in _yaml(text).load_all(text) if item is not None]
    except (YAMLError, ValueError) as error:
        raise InputError(f"{name} is no YAML: {_one_line(error)}", expected="a manifest, YAML or JSON") from error
    wrong = next((item for item in documents if not isinstance(item, CommentedMap)), None)
    if wrong is not None or not documents:
        told = f"{str(wrong)[:60]!r}" if documents else "no object"
        raise InputError(f"{name} holds {told}", expected="Kubernetes objects, with apiVersion and kind")
    return documents


def _written(documents: list[Any], text: str) -> str:
    if text.lstrip().startswith("{"):
        return "".join(json.dumps(item, indent=2, ensure_ascii=False) + "\n" for item in plain(documents))
    out = io.StringIO()
    yaml = _yaml(text)
    yaml.explicit_start = text.lstrip().startswith("---")
    yaml.dump_all(documents, out)
    return out.getvalue()


def _yaml(text: str) -> YAML:
    """Reads and writes with comments, quotes, and the indentation that the text has."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    found = re.search(r"^( *)[^\s#-][^#\n]*:[ \t]*\n(?: *#.*\n)*( *)- ", text, re.MULTILINE)
    offset = len(found[2]) - len(found[1]) if found else 0
    yaml.indent(mapping=2, sequence=2 + offset, offset=offset)
    return yaml


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
