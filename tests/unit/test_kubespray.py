"""The page's snippet for kubespray, through kubespray's own templates."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from kubespray import RELEASES, snippet, written

from gpunode.core.edits import RuntimeRequest, configure_runtime

BINARIES = [Path(name) for name in os.environ.get("GPUNODE_CONTAINERDS", "").split(os.pathsep) if name]


def runtimes_of(text: str) -> dict[str, Any]:
    plugins = tomllib.loads(text)["plugins"]
    plugin = plugins.get("io.containerd.cri.v1.runtime") or plugins["io.containerd.grpc.v1.cri"]
    return dict(plugin["containerd"]["runtimes"])


@pytest.mark.parametrize("release", RELEASES)
def test_a_node_with_the_snippet_of_the_page_is_left_as_it_is(release: str) -> None:
    text = written(release, snippet())
    assert runtimes_of(text.decode())["nvidia"]["options"]["SystemdCgroup"] is True
    request = RuntimeRequest(runtime="containerd", version=RELEASES[release][1], default_runtime="keep")
    edit = configure_runtime({"/etc/containerd/config.toml": text}, request)
    assert (edit.problems, edit.changes) == ((), {})


@pytest.mark.parametrize("release", RELEASES)
def test_without_quotes_kubespray_writes_a_text(release: str) -> None:
    """So the quotes of the page are no matter of taste."""
    [runtime] = snippet()
    bare = {**runtime, "options": {**runtime["options"], "SystemdCgroup": True}}
    assert runtimes_of(written(release, [bare]).decode())["nvidia"]["options"]["SystemdCgroup"] == "True"


@pytest.mark.skipif(not BINARIES, reason="GPUNODE_CONTAINERDS names no containerd")
@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: path.name)
@pytest.mark.parametrize("release", [name for name in RELEASES if RELEASES[name][1].startswith("1.")])
def test_a_real_containerd_reads_both_runtimes_alike(release: str, binary: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(written(release, snippet()))
    done = subprocess.run([binary, "-c", path, "config", "dump"], capture_output=True, text=True, check=True)
    found = {
        name: {key.lower(): value for key, value in one["options"].items() if value != ""}["systemdcgroup"]
        for name, one in runtimes_of(done.stdout).items()
    }
    assert found == {"runc": True, "nvidia": True}
