"""What k0s and MicroK8s would hand to containerd, on real ones: it loads, the runtime is in force, nothing else
has changed.

GPUNODE_CONTAINERDS names containerd binaries (a list like PATH); without it there is nothing to run here.  The files
of a case are made into what its distribution makes of them: MicroK8s fills its template in, k0s writes a root that
imports the drop-ins (1.36) or merges them into the defaults (1.35).
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from edit_cases import case as case_of
from edit_cases import cases as cases_of
from test_containerd_daemons import BINARIES, VERSIONS, Dump, applied, attempt, cri, differs, dump, unmet
from test_edits import request_of

from gpunode.core.edits import RuntimeRequest, configure_runtime
from gpunode.core.edits.engines.k0s import CONFIG as K0S
from gpunode.core.edits.engines.k0s import ROOTS

pytestmark = pytest.mark.skipif(not BINARIES, reason="GPUNODE_CONTAINERDS names no containerd")
ROOT = "/etc/containerd/config.toml"
SNAP = {
    "SNAP": "/snap/microk8s/1",
    "SNAP_DATA": "/var/snap/microk8s/1",
    "SNAPSHOTTER": "overlayfs",
    "RUNTIME": "runc",
    "RUNTIME_TYPE": "io.containerd.runc.v2",
}


def major(version: str) -> tuple[int, int]:
    first, second = version.split(".")[:2]
    return int(first), int(second)


def microk8s(tree: Mapping[str, bytes], request: RuntimeRequest) -> tuple[dict[str, bytes], str]:
    """run-containerd-with-args: sed on the template."""
    path = request.config or "/var/snap/microk8s/current/args/containerd-template.toml"
    text = tree[path].decode()
    for name, value in SNAP.items():
        text = text.replace(f"${{{name}}}", value)
    return {ROOT: text.encode()}, ROOT


def k0s(tree: Mapping[str, bytes], request: RuntimeRequest) -> tuple[dict[str, bytes], str]:
    """k0s 1.36: its own root imports the drop-ins; one of the user's own is as it stands."""
    own = {path: data for path, data in tree.items() if not data.startswith(b"# k0s_managed=true")}
    return {K0S: ROOTS[3].encode(), **own}, K0S


MADE = {"microk8s": microk8s, "k0s": k0s}


def cases(engine: str) -> list[str]:
    return [one.id for one in cases_of(engine, having="after")]


RUNS = [
    (case, binary)
    for binary in BINARIES
    for case in (
        *cases("microk8s"),
        *(cases("k0s") if major(VERSIONS[binary]) >= (2, 3) else ()),
    )
    # written for another containerd
    if not re.search(r"-1\.(?:6|7|30|35)\b|managed-2", case) or case.startswith("microk8s")
]


@pytest.mark.parametrize(("case", "binary"), RUNS, ids=lambda value: VERSIONS.get(value, value))
def test_what_the_distribution_makes_of_it_is_in_force_and_nothing_else_has_changed(
    case: str, binary: Path, tmp_path: Path
) -> None:
    one, engine = case_of(*case.split("/")), case.split("/")[0]
    request = request_of(one)
    if engine == "microk8s":
        request = RuntimeRequest(**{**vars(request), "version": VERSIONS[binary]})
    if request.config:
        pytest.skip("another file than the distribution's own")
    tree = one.before
    edit = attempt(configure_runtime, tree, request)
    if edit is None:
        pytest.skip("refused")
    before = dump(binary, *_arguments(engine, tree, request, tmp_path))
    after = dump(binary, *_arguments(engine, applied(tree, edit), request, tmp_path))
    assert isinstance(after, dict), f"does not load: {after}"
    assert unmet(after, request, before) == []
    if isinstance(before, dict):
        assert differs(before, after, edit.meant) == []


def _arguments(
    engine: str, tree: Mapping[str, bytes], request: RuntimeRequest, folder: Path
) -> tuple[dict[str, bytes], Path, str]:
    made, config = MADE[engine](tree, request)
    return made, folder, config


MERGED = [case for case in cases("k0s") if re.search(r"-1\.(?:30|35)$|managed-2$", case) and "own-file" not in case]


@pytest.mark.parametrize("case", MERGED)
@pytest.mark.parametrize("binary", [one for one in BINARIES if major(VERSIONS[one]) == (1, 7)], ids=VERSIONS.get)
def test_drop_ins_that_k0s_merges_into_the_defaults_change_what_was_meant(case: str, binary: Path) -> None:
    request, tree = request_of(case_of(*case.split("/"))), case_of(*case.split("/")).before
    edit = configure_runtime(tree, request)
    default = subprocess.run([binary, "config", "default"], capture_output=True, text=True, check=True).stdout

    def merged(found: Mapping[str, bytes]) -> Dump:
        result = tomllib.loads(default)
        for path in sorted(path for path in found if "/containerd.d/" in path):
            result = _merge(result, tomllib.loads(found[path].decode()))
        return result

    before, after = merged(tree), merged(applied(tree, edit))
    assert cri(after)
    assert unmet(after, request, before) == []
    assert differs(before, after, edit.meant) == []


def _merge(below: Dump, above: Dump) -> Dump:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
