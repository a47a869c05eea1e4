"""docs/api.md: every name of `gpunode.__all__`, from signatures, docstrings and the comments of fields."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpunode
from tools.docs import tables
from tools.docs.tables import NOTE, table

OPAQUE = ("ClusterApi",)  # made by a function, and handed over as it is
EXAMPLE = Path("examples/api.py")  # below docs/; a test runs it
SECTIONS = {
    "Nodes": "Targets detect Detected DesiredState plan HostPlan Planned provision RunOptions RunCallbacks verify "
    "write_plan load_plan SavedPlan",
    "Results": "HostResult HostOutcome Check Plan Step Reason Problem Event",
    "Configuration of container engines": "RuntimeRequest runtime_files configure_runtime unconfigure_runtime Edit "
    "Undo Hunk",
    "Driver, CUDA and toolkit": "load_knowledge Knowledge SolveRequest request_of solve Solution DriverChoice "
    "CudaChoice ToolkitChoice FabricChoice PackageWant Repository Kernel",
    "Facts": "parse_probe NodeFacts",
    "gpunode.yml": "load_spec parse_spec Spec DriverSpec CudaSpec ToolkitSpec ToolkitConfigSpec FabricSpec SourceSpec "
    "RunfileSpec Lock Locked",
    "Kubernetes": "connect_cluster ClusterApi",
    "Errors": "GpunodeError InputError StaleError UnreachableError RefusedError InterruptedByUser",
}


def api_page(docs: Path) -> str:
    """The page; `docs` is the folder that has the example."""
    parts = [f"# Python\n\n{NOTE}", _prose(gpunode.__doc__), "## Example", f"`docs/{EXAMPLE}`, which changes nothing:"]
    parts.append(f"```python\n{(docs / EXAMPLE).read_text(encoding='utf-8').rstrip()}\n```")
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names.split():
            parts.append(f"### {name}")
            parts += _entry(name, getattr(gpunode, name))
    return "\n\n".join(filter(None, parts)) + "\n"


def _entry(name: str, what: Any) -> Iterator[str]:
    if inspect.isfunction(what) or hasattr(what, "__wrapped__"):
        yield _signature(name, what)
        yield _prose(what.__doc__)
    elif inspect.isclass(what) and issubclass(what, Exception):
        yield f"Outcome: `{what.outcome}`." if issubclass(what, gpunode.GpunodeError) else ""
        yield _prose(what.__doc__)
    elif inspect.isclass(what):
        yield from _class(name, what)
    elif typing.get_origin(what) is typing.Literal:
        yield f"```python\n{name} = Literal[{', '.join(map(json.dumps, typing.get_args(what)))}]\n```"
    else:  # an alias of another type
        yield f"```python\n{name} = {_named(str(what))}\n```"


def _class(name: str, kind: type) -> Iterator[str]:
    made: Any = kind.__init__  # type: ignore[misc]  # its signature alone is of interest
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None
    if name in OPAQUE:
        yield _prose(kind.__doc__)
        return
    if fields is None:
        yield _signature(name, made, method=True)
    yield _prose(kind.__doc__)
    if fields is None:
        yield _prose(made.__doc__)
    elif name.endswith("Spec"):
        yield "Its fields are keys of [gpunode.yml](spec.md)."
    else:
        notes = tables.comments(kind)
        yield table(
            ("field", "type", "default", "meaning"),
            (
                (f"`{f.name}`", f"`{_named(str(f.type))}`", _default(f), f.metadata.get("doc") or notes[f.name])
                for f in fields
                if not f.metadata.get("internal")
            ),
        ).rstrip()
    for method, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod) else value
        if method.startswith("_") or not (isinstance(function, property | types.FunctionType) and function.__doc__):
            continue
        if isinstance(function, property):
            gives = inspect.signature(function.fget).return_annotation  # type: ignore[arg-type]
            yield f"`{method}` → `{_named(str(gives))}`: {' '.join(function.__doc__.split())}"
        else:
            yield f"{_signature(f'{name}.{method}', function, method=True)}\n\n{_prose(function.__doc__)}"


def _signature(name: str, function: Any, *, method: bool = False) -> str:
    """As Python writes it, on one line where that is short."""
    found = inspect.signature(function)
    shown = [_shown(p) for p in found.parameters.values()][method:]
    words = [str(p) for p in shown]
    star = next((i for i, p in enumerate(shown) if p.kind is p.KEYWORD_ONLY), None)
    words = words if star is None else [*words[:star], "*", *words[star:]]
    end = ")" if name in gpunode.__all__ and method else f") -> {found.return_annotation}"
    line = f"{name}({', '.join(words)}{end}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + end
    return f"```python\n{_named(line)}\n```"


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """With its annotation and its default as their source says them."""
    default = parameter.default
    text = "..." if callable(default) else repr(default)
    new = default if default is parameter.empty else _Text(text)
    return parameter.replace(annotation=_Text(parameter.annotation), default=new)


class _Text(str):
    def __repr__(self) -> str:
        return str(self)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        if dataclasses.is_dataclass(field.default):
            return f"`{type(field.default).__name__}()`"
        return "a function that does nothing" if callable(field.default) else f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()!r}`"
    return ""


def _named(text: str) -> str:
    """A type with the names that the package has for its parts, without the grammar of its texts."""
    text = re.sub(r"\bAnnotated\[(\w+), \w+\]", r"\1", text)
    return re.sub(
        r"\bApi\b", "ClusterApi", re.sub(r"\b(?:gpunode|collections|typing|pathlib)(?:\.\w+)*\.(?=[A-Z])", "", text)
    )


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown; what is indented is code."""
    text = inspect.cleandoc(docstring or "")
    return re.sub(
        r"(?m)(?:^    .+\n?|^\n(?=    ))+", lambda m: f"\n```python\n{textwrap.dedent(m[0]).strip()}\n```\n", text
    ).strip()
