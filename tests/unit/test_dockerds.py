"""Held against real daemons: `dockerd --validate` of the binaries that GPUNODE_DOCKERDS names (a list like PATH).

What they take is edited, and they take the result.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from daemon_json import documents
from edit_cases import EditCase, cases

from gpunode.core.edits import RuntimeRequest, configure_runtime
from gpunode.core.errors import GpunodeError

DOCKER = "/etc/docker/daemon.json"
CASES = cases("docker")
DAEMONS = [path for path in os.environ.get("GPUNODE_DOCKERDS", "").split(os.pathsep) if path]
pytestmark = pytest.mark.skipif(not DAEMONS, reason="GPUNODE_DOCKERDS names no dockerd")
each_daemon = pytest.mark.parametrize("daemon", DAEMONS, ids=lambda path: Path(path).name)


@cache
def version(daemon: str) -> str:
    printed = subprocess.run([daemon, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version ([^, ]+)", printed)
    assert found
    return found[1] if found[1] != "dev" else "29.7.2"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On PATH, with the proxy that a configuration without `userland-proxy` asks for."""
    path = tmp_path_factory.mktemp("dockerd")
    (path / "docker-proxy").write_text("#!/bin/sh\n")
    (path / "docker-proxy").chmod(0o755)
    return path


def verdict(daemon: str, folder: Path, data: bytes, flags: tuple[str, ...] = ()) -> str:
    """What the daemon says against a file, "" when it takes it."""
    file = folder / "daemon.json"
    file.write_bytes(data)
    done = subprocess.run(
        [daemon, "--validate", "--config-file", str(file), *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
    )
    if "unknown flag" in done.stderr:  # --validate, before 23.0; --feature, before 27.3
        pytest.skip(done.stderr.strip().splitlines()[0])
    return "" if done.returncode == 0 else done.stderr.strip() or "refused"


def edited(data: bytes | None, request: RuntimeRequest) -> bytes | str:
    """The file after configure, or the words of the refusal."""
    files = {} if data is None else {DOCKER: data}
    try:
        edit = configure_runtime(files, request)
    except GpunodeError as error:
        return str(error)
    if edit.problems:
        return edit.problems[0].what
    return edit.changes.get(DOCKER, data) or b""


@each_daemon
def test_the_daemon_takes_what_becomes_of_every_document_that_it_takes(daemon: str, folder: Path) -> None:
    request = RuntimeRequest(runtime="docker", version=version(daemon))
    outcomes = [edited(data, request) for _, _, data in documents() if not verdict(daemon, folder, data)]
    assert [data for data in outcomes if isinstance(data, bytes) and verdict(daemon, folder, data)] == []


@each_daemon
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_daemon_takes_the_outcome_of_every_case(daemon: str, folder: Path, case: EditCase) -> None:
    options = dict(case.asked)
    if options.get("version", "")[:2] != version(daemon)[:2]:
        options["version"] = version(daemon)
    flags = tuple(options.pop("flags", ()))
    path = options.get("config", DOCKER)
    request = RuntimeRequest(runtime="docker", flags=flags, **{**options, "config": DOCKER})
    after = edited(case.before.get(path), request)
    if isinstance(after, bytes):
        known = tuple(flag for flag in flags if not flag.startswith(("--config-file", "$")))
        if verdict(daemon, folder, case.before.get(path) or b"", known):
            return  # it refuses what was there, as the probe says before anything is edited
        assert verdict(daemon, folder, after, known) == ""
