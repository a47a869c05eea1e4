"""A node of a lab without a network: a script stands in place of NVIDIA's nvidia-smi, and says what that says.

Both are asked on the node itself, every question of the table, for healthy and for ill GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_provision import Node
from test_vendor_smi import ILL, SECOND, make_ill

from gpunode.core.errors import GpunodeError
from gpunode.edge.load import load_questions
from gpunode.lab import Lab, machine, nvml, vendor
from gpunode.lab import nodes as lab_nodes

pytestmark = [pytest.mark.lab, pytest.mark.extended, pytest.mark.timeout(900)]

QUESTIONS = load_questions()
BRANCH = "595"
CSV = "--format=csv,noheader,nounits"
REAL = "LD_LIBRARY_PATH=/opt/real /opt/real/nvidia-smi"


@pytest.fixture(scope="module")
def node(run_gpunode: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of a lab of its own that reaches no package index: it has neither NVIDIA's nvml.h nor a library of it."""
    own = tmp_path_factory.mktemp("lab")
    try:
        real, library = vendor.nvidia_smi(BRANCH), nvml.build()
    except GpunodeError as error:
        pytest.skip(f"NVIDIA's own nvidia-smi cannot be had here: {error}")
    places = {"XDG_STATE_HOME": str(own / "state"), "XDG_CACHE_HOME": str(own / "cache")}
    lab = [sys.executable, "-m", "gpunode", "lab"]
    with pytest.MonkeyPatch.context() as change:
        for name, value in places.items():
            change.setenv(name, value)
        shape = ("--engines", "none", "--gpu", "h100", "--gpu", "h100", "--name", "t-script")
        unreachable = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
        done = subprocess.run([*lab, "up", *shape], env=unreachable, capture_output=True, text=True, check=False)
        try:
            assert done.returncode == 0, done.stderr
            assert "nodes get a script in place of NVIDIA's nvidia-smi" in done.stdout + done.stderr
            [one] = lab_nodes.load_nodes()
            folder = Path(places["XDG_STATE_HOME"]) / "gpunode/lab/labs/t-script"
            made = Lab(name="t-script", nodes=(one,), directory=folder)
            some = Node(made, run_gpunode, tmp_path_factory.mktemp("spec"), {"driver": {"branch": BRANCH}})
            some.gpunode("provision", "--yes")
            some.sh("mkdir -p /opt/real")
            for path, name in ((real.path, "nvidia-smi"), (library, "libnvidia-ml.so.1")):
                machine.podman("cp", str(path), f"{one.container}:/opt/real/{name}")
            yield some
        finally:
            subprocess.run([*lab, "down", "--all"], capture_output=True, check=False)


def answer(node: Node, program: str, words: str) -> tuple[str, list[str]]:
    """Exit status and values; of a table of profiles GPU, name, ID and how many are free."""
    *said, status = node.sh(f"{program} {words} 2>/dev/null; status=$?; echo; echo $status").splitlines()
    rows = [line.split()[1:6] for line in said if line.startswith("|") and "/" in line and " MIG " in line]
    plain = [line.split(", ") for line in said if line and not line.startswith(("|", "+-"))]
    return status, [value for row in (*plain, *rows) for value in row]


@pytest.mark.parametrize("ailment", ["healthy", *ILL])
def test_the_script_says_what_nvidias_program_says(node: Node, ailment: str) -> None:
    assert node.sh("head -c 2 /usr/bin/nvidia-smi") == "#!"
    fields = ILL[ailment][0] if ailment in ILL else {}
    make_ill(node, *((SECOND, field, value) for field, value in fields.items()))
    asked = ",".join(name for name, field in QUESTIONS.gpu.items() if field.since <= int(BRANCH))
    questions = [
        f"--query-gpu={asked} {CSV}",
        f"--query-remapped-rows={','.join(QUESTIONS.remapped)} {CSV}",
        *("-L", "nvlink --status", "mig -lgi", "mig -lci", "mig -lgip", "mig -lgipp"),
    ]
    for words in questions:
        assert answer(node, "nvidia-smi", words) == answer(node, REAL, words), words


@pytest.mark.parametrize("ailment", ["healthy", *ILL])
def test_verify_sees_by_the_script_what_it_sees_by_nvidias_program(node: Node, ailment: str) -> None:
    fields, check, _fault = ILL.get(ailment, ({}, "", ""))
    make_ill(node, *((SECOND, field, value) for field, value in fields.items()))
    host = node.json("verify", "--no-smoke", exit=None)
    wrong = {one["id"] for one in host["checks"] if one["status"] not in ("passed", "skipped")}
    assert (check in wrong) if check else not wrong, wrong
