"""A lab node with real engines, as the tests of their configuration use it."""

from __future__ import annotations

import base64
import importlib.util
import io
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.lab import Lab
from gpunode.node import script

# What the engines of each distribution are: the versions that Debian's archive has.
DISTROS = ("debian:12", "debian:13", "debian:13+forky")
TRACE = "/var/log/nvidia-container-runtime.trace"
IMAGE = "localhost/gpunode-test:1"
POD = (Path(__file__).parent / "pod.sh").read_text()
MODULES = ("gpunode", "click", "jinja2", "markupsafe", "tomli", "tomlkit", "yaml")
_TOOLKIT = """
set -e
mkdir -p /etc/apt/keyrings
busybox wget -q -O /etc/apt/keyrings/toolkit.asc {key}
echo 'deb [signed-by=/etc/apt/keyrings/toolkit.asc] {url} /' >/etc/apt/sources.list.d/toolkit.list
only='-o Dir::Etc::SourceList=/etc/apt/sources.list.d/toolkit.list -o Dir::Etc::SourceParts=/dev/null'
apt-get -qq $only update
DEBIAN_FRONTEND=noninteractive apt-get -qq $only install nvidia-container-toolkit >/dev/null
"""


def _sources(module: str) -> Iterator[tuple[str, bytes]]:
    """The files of a module that is installed here, without what is compiled for this machine or only for the lab."""
    found = importlib.util.find_spec(module)
    assert found and found.origin
    folder = Path(found.origin).parent
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and path.suffix not in (".so", ".pyc") and relative.parts[0] not in ("lab", "collection"):
            yield f"{module}/{relative}", path.read_bytes()


class DaemonNode:
    """One node: shell commands, node scripts, and trees of files there and back."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.node = lab, lab.nodes[0]

    def run(self, command: str, *, stdin: str = "") -> Any:
        return self.lab.run(self.node, command, stdin=stdin)

    def sh(self, command: str, *, stdin: str = "") -> str:
        """What a command printed; fails when it fails."""
        done = self.run(command, stdin=stdin)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def send(self, name: str, request: Mapping[str, bytes]) -> Any:
        return self.run(program(script(name), request))

    def facts(self) -> NodeFacts:
        return parse_probe(self.send("probe.sh", {}).stdout)

    def commit(self, request: Mapping[str, bytes]) -> Outcome:
        done = self.send("commit.sh", request)
        return parse_outcome(done.stdout, done.returncode)

    def install_toolkit(self) -> None:
        """The lab's nvidia-container-toolkit, from the repository that the node's gpunode.yml points at."""
        self.sh(_TOOLKIT.format(**self.node.sources["nvidia-container-toolkit"]))

    def install_gpunode(self) -> None:
        """This checkout's package and what `gpunode runtime` imports, for the node's own python3: no pip needed."""
        self.put("/opt/gpunode", {name: data for module in MODULES for name, data in _sources(module)})
        self.put("/usr/local/bin", {"gpunode": b'#!/bin/sh\nPYTHONPATH=/opt/gpunode exec python3 -m gpunode "$@"\n'})
        self.sh("chmod 755 /usr/local/bin/gpunode")

    def pod(self, verb: str, *words: str) -> Any:
        """pod.sh: `image`, or `run` or `keep` with HANDLER COMMAND [NAME=VALUE …]."""
        return self.run(f"sh -s -- {shlex.join((verb, *words))}", stdin=POD)

    def trace(self) -> list[str]:
        """What the stand-in nvidia-container-runtime was called with since the last time that somebody asked."""
        return self.sh(f"cat {TRACE} 2>/dev/null; rm -f {TRACE}").splitlines()

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files, named relative to the folder, in one round trip."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), 0o644
                tar.addfile(info, io.BytesIO(data))
        text = base64.encodebytes(packed.getvalue()).decode()
        self.sh(f"mkdir -p {folder} && base64 -d | tar -C {folder} -xzf -", stdin=text)

    def get(self, folder: str) -> dict[str, bytes]:
        """Every file of a folder, by its name relative to it."""
        packed = base64.b64decode(self.sh(f"tar -C {folder} -czf - . | base64"))
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            read = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            return {name.removeprefix("./"): file.read() for name, file in read.items() if file}
