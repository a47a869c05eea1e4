"""The public API: what stands in `gpunode.__all__`."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import inspect
import os
import runpy
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import over

import gpunode

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests/cases/probes"
EXAMPLE = ROOT / "docs/examples/api.py"
PUBLIC = {name: getattr(gpunode, name) for name in gpunode.__all__}
FUNCTIONS = {n: f for n, f in PUBLIC.items() if inspect.isroutine(f) or hasattr(f, "__wrapped__")}
PLAIN = (bool, int, float, str, bytes, Path, type(None))

# function → its arguments, written as a user would, with nothing but public names, Path and what Python brings;
# PROBE is the path of a saved probe of a node that has converged, FOLDER an empty folder
SPEC = '{"driver": {"branch": "none"}, "toolkit": {"version": "none"}}'
TARGETS, DESIRED = "Targets(probes=(PROBE,))", f"DesiredState({SPEC}, to_run=False)"
HOSTS = f"plan({TARGETS}, {DESIRED})"
DOCKER = 'RuntimeRequest(runtime="docker", version="28.5")'
FILES = """{"/etc/docker/daemon.json": b'{"debug": true}'}"""
CALLS = {
    "configure_runtime": {"files": FILES, "request": DOCKER},
    "connect_cluster": {"kubeconfig": '"/none"', "context": '"one"', "timeout": "1.0"},
    "detect": {"targets": TARGETS, "only": '["node1"]', "on_done": "lambda found: None"},
    "load_knowledge": {},
    "load_plan": {"folder": f"[write_plan(FOLDER, {HOSTS}, {TARGETS}, {DESIRED}), FOLDER][1]"},
    "load_spec": {"path": '[(FOLDER / "gpunode.yml").write_text("driver: {branch: 580}"), FOLDER / "gpunode.yml"][1]'},
    "parse_probe": {"text": "PROBE.read_text()", "of_node": "True"},
    "parse_spec": {"data": SPEC, "where": '"here"'},
    "plan": {"targets": TARGETS, "desired": DESIRED, "on_done": "lambda found: None"},
    "prepare": {
        "targets": 'Targets(hosts=("127.0.0.1:1",))',
        "spec_data": SPEC,
        "expected": '{"fabric": {}}',
        "lock": "None",
        "look_up": "False",
        "check": "True",
        "on_done": "lambda found: None",
    },
    "provision": {
        "hosts": HOSTS,
        "targets": TARGETS,
        "desired": DESIRED,
        "options": 'RunOptions(check=True, rollout={"waves": ["1", "100%"]}, cluster=lambda: connect_cluster("/none"))',
        "saved": f"[write_plan(FOLDER, {HOSTS}, {TARGETS}, {DESIRED}), load_plan(FOLDER)][1]",
        "callbacks": "RunCallbacks(result=lambda result: None)",
    },
    "request_of": {"facts": "parse_probe(PROBE.read_text())", "spec": 'parse_spec({"cuda": {"versions": ["12.8"]}})'},
    "runtime_files": {"files": FILES, "request": DOCKER},
    "solve": {
        "request": 'SolveRequest(gpus=("10de:2330",), distro="ubuntu:24.04", kernels=(Kernel(release="6.8.0"),),'
        ' driver=DriverSpec(branch="580", runfile=RunfileSpec()), cuda=CudaSpec(versions=("12.8",)),'
        " toolkit=ToolkitSpec(config=ToolkitConfigSpec(debug=True)), fabric=FabricSpec(),"
        ' sources={"nvidia-cuda": SourceSpec()})',
        "knowledge": "load_knowledge()",
    },
    "unconfigure_runtime": {
        "files": FILES,
        "request": DOCKER,
        "undo": '[{"/etc/docker/daemon.json": Undo(hunks=(Hunk(before=b"", after=b"x"),))}]',
    },
    "verify": {
        "targets": TARGETS,
        "desired": DESIRED,
        "smoke": "False",
        "on_done": "lambda found: None",
        "accepted": "None",
    },
    "write_plan": {"folder": "FOLDER", "hosts": HOSTS, "targets": TARGETS, "desired": DESIRED},
}


def test_every_public_name_can_be_had_and_is_listed_once() -> None:
    assert all(value is not None for value in PUBLIC.values())
    assert sorted(gpunode.__all__) == sorted(set(gpunode.__all__))


def test_a_type_checker_is_told_of_every_public_name() -> None:
    source = Path(gpunode.__file__).read_text(encoding="utf-8")
    [block] = [one for one in ast.parse(source).body if isinstance(one, ast.If)]
    imported = {alias.asname for one in block.body if isinstance(one, ast.ImportFrom) for alias in one.names}
    assigned = {one.id for one in ast.walk(block) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    assert {*imported, *assigned} - {None} == {*gpunode.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'doctr'"):
        _ = gpunode.doctr


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, gpunode; print(sorted({'paramiko', 'ansible', 'rich', 'yaml', 'click'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---------------------------------------------------------------- what a caller has to hand over


@over(FUNCTIONS)
def test_every_function_can_be_called_with_public_names_alone(name: str) -> None:
    function, given = FUNCTIONS[name], CALLS[name]
    hints = typing.get_type_hints(inspect.unwrap(function))
    assert set(given) == set(inspect.signature(function).parameters), "an argument is not built"
    for argument, text in given.items():
        assert fits(built(text), hints[argument]), (argument, text)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def built(text: str) -> Any:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    names = {**PUBLIC, "Path": Path, "PROBE": CASES / "debian12-stock-engines/probe.txt", "FOLDER": folder}
    return eval(text, names)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of that type, as far down as isinstance sees."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (tuple, list, collections.abc.Sequence, collections.abc.Collection):
        return isinstance(value, origin) and all(fits(item, inner[0]) for item in value)
    if origin in (dict, collections.abc.Mapping):
        return isinstance(value, origin) and all(fits(item, inner[1]) for item in value.values())
    return isinstance(value, (int, float) if hint is float else hint)


def test_calls_give_what_they_promise() -> None:
    """The functions that need no host are called as the table has them."""
    results = {
        name: built(f"{name}({', '.join(f'{argument}={text}' for argument, text in given.items())})")
        for name, given in CALLS.items()
        if name not in ("connect_cluster", "provision")
    }
    for name, result in results.items():
        assert fits(result, typing.get_type_hints(inspect.unwrap(FUNCTIONS[name]))["return"]), name
    assert [host.outcome for host in results["plan"]] == ["ok"]
    assert [result.outcome for result in built(f"provision({HOSTS}, {TARGETS}, {DESIRED})")] == ["ok"]
    with pytest.raises(gpunode.InputError):
        built('connect_cluster("/none")')


def classes(hint: Any) -> Iterator[type]:
    """Every class in a type."""
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for inner in typing.get_args(hint):
        for one in inner if isinstance(inner, list) else [inner]:
            yield from classes(one)


def test_every_class_that_an_argument_needs_is_public() -> None:
    """Also those of the fields of such a class, unless a public function gives the class as a whole."""
    given = {c for f in FUNCTIONS.values() for c in classes(typing.get_type_hints(inspect.unwrap(f)).get("return"))}
    public = {value for value in PUBLIC.values() if isinstance(value, type)}
    todo = [
        (f"{name}({argument})", one)
        for name, function in FUNCTIONS.items()
        for argument, hint in typing.get_type_hints(inspect.unwrap(function)).items()
        if argument != "return"
        for one in classes(hint)
    ]
    seen, private = set(), []
    while todo:
        where, kind = todo.pop()
        if kind in (*seen, object, Any) or issubclass(kind, PLAIN) or kind.__module__ == "collections.abc":
            continue
        seen.add(kind)
        if kind not in public:
            private.append(f"{where}: {kind.__qualname__}")
        elif kind not in given and dataclasses.is_dataclass(kind):
            late = {"InventoryHost": object, "Connect": collections.abc.Callable[[], gpunode.ClusterApi]}
            inside = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]), late)
            shown = [field.name for field in dataclasses.fields(kind) if not field.metadata.get("internal")]
            todo += [(f"{kind.__name__}.{field}", one) for field in shown for one in classes(inside[field])]
    assert private == [] and len(seen) > 10


def test_results_have_neither_exit_codes_nor_untyped_extras() -> None:
    for kind in (gpunode.HostResult, gpunode.HostPlan, gpunode.Check, gpunode.Plan):
        names = {name for name in dir(kind) if not name.startswith("_")} | {f.name for f in dataclasses.fields(kind)}
        assert not {name for name in names if "exit" in name or name == "extra"}, kind
        assert all("Any" not in str(field.type) for field in dataclasses.fields(kind)), kind


# ---------------------------------------------------------------- the example of docs/api.md


def example(*words: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_example_runs_on_this_machine() -> None:
    lines = example()
    assert lines[0].startswith("localhost: ")
    assert '"default-runtime": "nvidia"' in "\n".join(lines)


def test_the_example_plans_recorded_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    probes = [CASES / name / "probe.txt" for name in ("debian12-h100-fresh", "debian12-driver-mismatch")]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *map(str, probes)])
    runpy.run_path(str(EXAMPLE))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "debian12-h100-fresh: 1 GPUs, pending"
    assert "  Install the NVIDIA driver and the headers of every kernel" in lines
    assert "debian12-driver-mismatch: 1 GPUs, refused" in lines
    assert any(line.startswith("  refused: ") for line in lines)
    assert any(line.startswith("H100 on Ubuntu 24.04: driver ") for line in lines)
