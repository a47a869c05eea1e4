"""What `config dump` cannot tell: with the edited files real daemons start, and load their CRI plugin.

Runs where GPUNODE_CONTAINERDS names containerd binaries, as root and with unshare: each daemon has a mount namespace of
its own, with empty folders over all that it writes to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from edit_cases import case as case_of
from test_containerd_daemons import BINARIES, CONFIG, VERSIONS, applied, attempt
from test_edits import request_of
from test_undo_values import SINCE, undone_since

from gpunode.core.edits import configure_runtime, unconfigure_runtime

pytestmark = pytest.mark.skipif(
    not BINARIES or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="GPUNODE_CONTAINERDS names no containerd, or this is not root",
)
CORE = [
    "aks-like-1.7-other-name-is-default",
    "both-spellings-version-2-2.1",
    "debian-13-stock",
    "docker-package-1.7-cri-enabled",
    "empty-runtimes-1.7",
    "gke-like-1.7",
    "missing-1.6",
    "nvidia-ctk-drop-in-1.7",
    "shim-v1-keys-removed-1.6",
    "sibling-below-the-root-2.3",
    "version-1-root-2.3",
    "version-4-moved-sections-2.3",
]
START = """
for folder in /opt /run /var/lib /etc/containerd; do mkdir -p $folder && mount -t tmpfs none $folder || exit 1; done
cp -r "$1/etc/containerd/." /etc/containerd
exec "$0"
"""


def log_of_start(binary: Path, tree: Mapping[str, bytes], folder: Path) -> str:
    """What the daemon logs until it has started, or has given up."""
    shutil.rmtree(folder / "etc", ignore_errors=True)
    for name, data in {"/etc/containerd/.keep": b"", **tree}.items():
        path = Path(f"{folder}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    log = folder / "log"
    with log.open("w") as sink:
        daemon = subprocess.Popen(["unshare", "-m", "sh", "-c", START, binary, folder], stdout=sink, stderr=sink)
        until = time.monotonic() + 30
        while time.monotonic() < until and daemon.poll() is None:
            if "containerd successfully booted" in log.read_text():
                break
            time.sleep(0.05)
        daemon.terminate()
        daemon.wait()
    return log.read_text()


def cri_loads(log: str) -> bool:
    failed = [
        line for line in log.splitlines() if "failed to load plugin" in line and "io.containerd.grpc.v1.cri" in line
    ]
    return "containerd successfully booted" in log and not failed


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The binaries that load their CRI plugin with no configuration at all: not each build does on each machine."""
    return [binary for binary in BINARIES if cri_loads(log_of_start(binary, {}, tmp_path_factory.mktemp("bare")))]


@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: VERSIONS[path])
@pytest.mark.parametrize("name", CORE)
def test_the_daemon_starts_with_its_cri_plugin_after_the_edit_and_without_it(
    name: str, binary: Path, sound: list[Path], tmp_path: Path
) -> None:
    if binary not in sound:
        pytest.skip("no CRI plugin without a configuration either")
    case = case_of("containerd", name)
    tree, request = case.before, replace(request_of(case), version=VERSIONS[binary])
    edit = attempt(configure_runtime, tree, request)
    if edit is None:
        pytest.skip("refused")
    after = applied(tree, edit)
    assert (request.config or CONFIG) in after
    log = log_of_start(binary, after, tmp_path)
    assert cri_loads(log), log[-2000:]
    left = applied(after, unconfigure_runtime(after, request))
    log = log_of_start(binary, left, tmp_path)
    assert cri_loads(log), log[-2000:]


@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: VERSIONS[path])
@pytest.mark.parametrize("what", [what for what, (path, *_) in SINCE.items() if path == CONFIG])
def test_the_daemon_loads_its_cri_plugin_after_an_undo_of_what_a_person_needs(
    what: str, binary: Path, sound: list[Path], tmp_path: Path
) -> None:
    if binary not in sound:
        pytest.skip("no CRI plugin without a configuration either")
    for left in undone_since(what, VERSIONS[binary]):
        log = log_of_start(binary, {CONFIG: left or b""}, tmp_path)
        assert cri_loads(log), log[-2000:]
