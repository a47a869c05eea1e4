"""NVIDIA's installers: what is chosen, the steps, and runfile.sh on files and servers that are wrong in every way."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.facts import parse_probe
from gpunode.core.model import NodeFacts, Outcome, Package, Plan
from gpunode.core.remote import parse_outcome, program
from gpunode.core.requests_runfile import needs_file, runfile_request, runfile_value
from gpunode.core.solve import SolveRequest, solve
from gpunode.core.solve_runfile import installer_options
from gpunode.core.spec import CudaSpec, DriverSpec, parse_spec
from gpunode.core.spec_runfile import RunfileSpec
from gpunode.edge import load
from gpunode.edge.load import load_knowledge
from gpunode.edge.planner import Planner
from gpunode.edge.runfile import runfile_here
from gpunode.node import script

KNOWLEDGE = load_knowledge()
PROBE = Path(__file__).parents[1] / "cases/probes/debian12-h100-fresh/probe.txt"
H100, GTX1080, K80 = "10de:2330", "10de:1b80", "10de:102d"
SHA = "ab" * 32
SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


# ---------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("version", "flavour", "has", "lacks"),
    [
        ("580.178.04", "open", "--kernel-module-type=open", "-m=kernel-open"),
        ("580.178.04", "proprietary", "--kernel-module-type=proprietary", "--kernel-module-type=open"),
        ("535.309.01", "open", "-m=kernel-open", "--kernel-module-type=open"),
        ("470.256.02", "proprietary", "--dkms", "--allow-installation-with-running-driver"),
        ("550.163.01", "open", "--no-nouveau-check", "--kernel-module-type=open"),
        ("390.157", "proprietary", "--silent", "--no-nouveau-check"),
    ],
)
def test_an_installer_gets_the_options_that_it_knows(version: str, flavour: Any, has: str, lacks: str) -> None:
    options = installer_options(version, flavour, KNOWLEDGE.driver_runfile)
    assert {"--silent", "--dkms", has} <= set(options)
    assert lacks not in options


@pytest.mark.parametrize(
    ("gpu", "distro", "arch", "driver", "name", "url"),
    [
        (
            H100,
            "debian:12",
            "x86_64",
            DriverSpec(),
            "NVIDIA-Linux-x86_64-595.91.07.run",
            "https://us.download.nvidia.com/",
        ),
        (
            GTX1080,
            "arch",
            "x86_64",
            DriverSpec(),
            "NVIDIA-Linux-x86_64-580.178.04.run",
            "XFree86/Linux-x86_64/580.178.04",
        ),
        (K80, "debian:12", "x86_64", DriverSpec(), "NVIDIA-Linux-x86_64-470.256.02.run", "470.256.02"),
        (
            H100,
            "ubuntu:24.04",
            "aarch64",
            DriverSpec(),
            "NVIDIA-Linux-aarch64-595.91.07.run",
            "XFree86/aarch64/595.91.07",
        ),
        (
            H100,
            "centos:7",
            "x86_64",
            DriverSpec(version="535.309.01", runfile=RunfileSpec(url="http://m/{version}-{arch}.run", sha256=SHA)),
            "NVIDIA-Linux-x86_64-535.309.01.run",
            "http://m/535.309.01-x86_64.run",
        ),
    ],
)
def test_the_runfile_of_the_branch_is_chosen(
    gpu: str, distro: str, arch: str, driver: DriverSpec, name: str, url: str
) -> None:
    asked = SolveRequest(gpus=(gpu,), distro=distro, arch=arch, driver=replace(driver, method="runfile"))
    solution = solve(asked, KNOWLEDGE)
    assert solution.problems == ()
    choice = solution.driver
    assert choice and choice.runfile
    assert (choice.method, choice.runfile.name, choice.repository) == ("runfile", name, "")
    assert url in choice.runfile.urls[0]
    assert "dkms" in [package.name for package in choice.packages]


@pytest.mark.parametrize(
    ("more", "what", "fix"),
    [
        (
            {"driver": DriverSpec(runfile=RunfileSpec(path="/srv/x.run"))},
            "no checksum of driver.runfile.path",
            "sha256",
        ),
        (
            {"driver": DriverSpec(runfile=RunfileSpec(url="http://m/x.run"))},
            "no checksum of driver.runfile.url",
            "sha256",
        ),
        ({"nvswitches": ("10de:22a3",)}, "an NVLink fabric: its manager must be of the driver's", "packages"),
        ({"driver": DriverSpec(branch="distro")}, "a distribution has no runfile", "driver.method"),
        (
            {"cuda": CudaSpec(versions=("12.8",), method="runfile")},
            "no checksum of cuda_12.8",
            "cuda.runfiles.12.8.sha256",
        ),
    ],
)
def test_what_cannot_be_installed_by_a_runfile_is_refused(more: dict[str, Any], what: str, fix: str) -> None:
    driver = replace(more.pop("driver", DriverSpec()), method="runfile")
    problems = solve(SolveRequest(gpus=(H100,), distro="debian:12", driver=driver, **more), KNOWLEDGE).problems
    assert [(what in p.what, fix in p.fix) for p in problems] == [(True, True)]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"driver": {"runfile": {"url": "http://m/x", "path": "/x"}}}, "both url and path"),
        ({"driver": {"runfile": {"url": "ftp://m/x"}}}, "url is"),
        ({"driver": {"runfile": {"sha256": "abc"}}}, "sha256 is"),
        ({"driver": {"runfile": {"path": "/x-{verison}.run"}}}, "path is"),
        ({"cuda": {"versions": ["12.8"], "runfiles": {"12.9": {}}}}, "cuda.runfiles has '12.9'"),
    ],
)
def test_a_runfile_in_the_spec_that_cannot_be_meant_is_refused(data: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_spec(data)
    assert says in error.value.what


# ---------------------------------------------------------------- the steps


def plan(facts: NodeFacts, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(load, "resolve_key", lambda repository, spec: b"(a key)\n")
    return Planner({"toolkit": {"version": "none"}, **spec}).plan("node1", facts).plan


def facts(**more: Any) -> NodeFacts:
    found = parse_probe(PROBE.read_text())
    return replace(found, **{**more, "driver": replace(found.driver, **more.get("driver", {}))})


RUNFILE = {"driver": {"method": "runfile", "branch": "580"}}


def test_the_installer_is_fetched_before_anything_is_touched_and_run_when_dkms_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {step.id: step.value for step in plan(facts(), RUNFILE, monkeypatch).steps}
    wanted = ["preflight.expect", "preflight.fetch", "driver.packages", "driver.runfile", "driver.files"]
    assert [name for name in steps if name in wanted] == wanted
    assert steps["preflight.fetch"] == steps["driver.runfile"]
    [value] = steps["driver.runfile"]
    assert (value["kind"], value["version"], value["modules"]) == ("driver", "580.178.04", "open")
    assert "dkms" in [package["name"] for package in steps["driver.packages"]["install"]]
    assert steps["driver.activate"]["version"] == "580.178.04"


def test_a_node_whose_runfile_driver_is_the_one_wanted_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there = plan(facts(driver={"runfile": "580.178.04"}), RUNFILE, monkeypatch)
    # DKMS has yet to build for the kernels of this probe, which the installer's step does
    assert "nvidia module for kernel" in str([s.reasons for s in there.steps if s.id == "driver.runfile"])
    built = tuple(replace(k, module="580.178.04", flavour="open") for k in facts().kernels)
    done = plan(facts(driver={"runfile": "580.178.04"}, kernels=built), RUNFILE, monkeypatch)
    assert [step.id for step in done.steps if "runfile" in step.id or "fetch" in step.id] == []


def test_packages_of_a_driver_go_before_its_runfile_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {name: Package(name=name, version="595.91.07-1") for name in ("nvidia-open", "libnvidia-ml1", "libcuda1")}
    kept = {"nvidia-container-toolkit": Package(name="nvidia-container-toolkit", version="1.20.0-1")}
    steps = {step.id: step.value for step in plan(facts(packages={**held, **kept}), RUNFILE, monkeypatch).steps}
    assert set(steps["driver.packages"]["remove"]) == set(held)


def test_to_go_over_to_packages_the_runfiles_driver_is_taken_off_first(monkeypatch: pytest.MonkeyPatch) -> None:
    there = facts(driver={"runfile": "570.211.01", "userspace": "570.211.01"})
    refused = plan(there, {}, monkeypatch)
    assert [p.what for p in refused.problems] == [
        "driver 570.211.01 was installed by NVIDIA's runfile: packages on top of it break both"
    ]
    steps = {step.id: step.value for step in plan(there, {"driver": {"method": "packages"}}, monkeypatch).steps}
    order = ["driver.sources", "driver.uninstall", "driver.packages"]
    assert [name for name in steps if name in order] == order
    assert steps["driver.uninstall"] == [{"kind": "driver", "version": "570.211.01"}]


def test_a_given_file_is_compared_when_the_plan_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "driver.run"
    spec = {"driver": {"method": "runfile", "runfile": {"path": str(file), "sha256": SHA}}}
    assert f"there is no file {file}" in plan(facts(), spec, monkeypatch).problems[0].what
    file.write_text("<!DOCTYPE html><title>sign in</title>")
    assert "is a web page, not an installer" in plan(facts(), spec, monkeypatch).problems[0].what
    file.write_text("#!/bin/sh\n")
    wrong = plan(facts(), spec, monkeypatch)
    assert (wrong.steps, len(wrong.problems)) == ((), 1)
    assert "has the SHA-256" in wrong.problems[0].what
    spec["driver"]["runfile"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()  # type: ignore[index]
    assert plan(facts(), spec, monkeypatch).problems == ()


# ---------------------------------------------------------------- runfile.sh: files and servers


class Node:
    """runfile.sh in a shell, its store in a folder of the test's."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.state, self.shell = folder / "state", shell

    def run(
        self, mode: str, value: dict[str, Any], *, path: str = "", check: bool = False, given: str = ""
    ) -> tuple[Outcome, str]:
        request = runfile_request(mode, value, check=check, given=given) | {"state": f"{self.state}\n".encode()}
        env = {**os.environ, **({"PATH": path} if path else {})}
        done = subprocess.run(
            [shutil.which(self.shell[0]) or "", *self.shell[1:], "-s"],
            input=program(script("runfile.sh"), request),
            env=env,
            text=True,
            capture_output=True,
            check=False,
        )
        return parse_outcome(done.stdout, done.returncode), done.stdout

    @property
    def kept(self) -> list[str]:
        store = self.state / "runfile"
        return sorted(file.name for file in store.iterdir()) if store.exists() else []


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, list(request.param))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A web server: its folder and its URL."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


NAME = "NVIDIA-Linux-x86_64-999.1.run"
TEXT = b"#!/bin/sh\necho an installer\n"


def value(*urls: str, **more: Any) -> dict[str, Any]:
    return {"kind": "driver", "name": NAME, "version": "999.1", "urls": list(urls), **more}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_file_is_fetched_once_and_kept_with_its_checksum(node: Node, site: tuple[Path, str]) -> None:
    folder, url = site
    (folder / NAME).write_bytes(TEXT)
    asked = value(f"{url}/gone/{NAME}", f"{url}/{NAME}", sha256=sha(TEXT))
    would, _ = node.run("fetch", asked, check=True)
    assert (would.status, would.changed, node.kept) == ("changed", (f"fetch {NAME}",), [])
    done, _ = node.run("fetch", asked)
    assert (done.status, done.changed) == ("changed", (f"fetched {NAME}",))
    assert node.kept == [NAME, f"{NAME}.sha256"]
    again, _ = node.run("fetch", asked)
    assert (again.status, again.message) == ("unchanged", f"{NAME} is here")


def test_without_a_checksum_the_one_beside_the_file_counts(node: Node, site: tuple[Path, str]) -> None:
    folder, url = site
    (folder / NAME).write_bytes(TEXT)
    alone, _ = node.run("fetch", value(f"{url}/{NAME}"))
    assert (alone.status, node.kept) == ("failed", [])
    (folder / f"{NAME}.sha256sum").write_text(f"{sha(TEXT)}  {NAME}\n")
    assert node.run("fetch", value(f"{url}/{NAME}"))[0].status == "changed"


@pytest.mark.parametrize(
    ("served", "says"),
    [
        (b"<!DOCTYPE html>\n<html><title>Sign in</title></html>", "is a web page, not an installer"),
        (b"\n<HTML><body>proxy error</body></HTML>", "is a web page, not an installer"),
        (TEXT[:-5], "and " + sha(TEXT) + " is expected"),
        (b"", "is no installer: it has 0 bytes"),
        (b"PK\x03\x04 a zip", "is no installer"),
    ],
)
def test_a_wrong_file_is_one_message_and_is_not_kept(
    node: Node, site: tuple[Path, str], served: bytes, says: str
) -> None:
    folder, url = site
    (folder / NAME).write_bytes(served)
    outcome, _ = node.run("fetch", value(f"{url}/{NAME}", sha256=sha(TEXT)))
    assert (outcome.status, says in outcome.message, node.kept) == ("refused", True, [])
    assert "nothing was changed" in outcome.fix


def test_a_server_that_is_not_there_is_said(node: Node) -> None:
    outcome, _ = node.run("fetch", value(f"http://127.0.0.1:9/{NAME}", sha256=sha(TEXT)))
    assert (outcome.status, node.kept) == ("failed", [])
    assert f"{NAME} cannot be fetched: http://127.0.0.1:9/{NAME}" in outcome.message


def test_a_node_without_a_downloader_asks_for_the_file_and_takes_it(node: Node, tmp_path: Path) -> None:
    if node.shell[0] == "busybox":
        pytest.skip("its shell may have a wget of its own")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sha256sum", "cut", "head", "mkdir", "mktemp", "base64", "rm", "cat", "mv", "cp", "tr", "wc", "sed"):
        (tools / name).symlink_to(shutil.which(name) or "")
    for name in ("id", "date", "grep", "flock", "modinfo", "tail", "awk"):
        (tools / name).symlink_to(shutil.which(name) or "/bin/true")
    asked = value(f"http://127.0.0.1:9/{NAME}", sha256=sha(TEXT))
    outcome, text = node.run("fetch", asked, path=str(tools))
    assert (outcome.status, needs_file(text), node.kept) == ("changed", True, [])
    sent = tmp_path / "sent"
    sent.write_bytes(TEXT)
    assert node.run("fetch", asked, given=str(sent))[0].status == "changed"
    assert (node.state / "runfile" / NAME).read_bytes() == TEXT


def test_what_lies_there_is_compared_again_before_it_is_run(node: Node, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(TEXT)
    node.run("fetch", value(sha256=sha(TEXT)), given=str(sent))
    (node.state / "runfile" / NAME).write_bytes(b"#!/bin/sh\ntouch /tmp/never\n")
    outcome, _ = node.run("install", value())
    assert (outcome.status, "is expected" in outcome.message) == ("refused", True)


def test_an_installer_that_was_not_fetched_is_not_run(node: Node) -> None:
    outcome, _ = node.run("install", value())
    assert (outcome.status, outcome.message) == ("refused", f"{NAME} is not on the node")
    assert node.run("install", value(), check=True)[0].changed == (f"run {NAME}",)


def test_an_installer_that_was_killed_is_closed_in_the_journal(node: Node) -> None:
    node.state.mkdir()
    journal = node.state / "journal.jsonl"
    journal.write_text('{"v":1,"id":"x-1","at":"","op":"runfile","phase":"intent","part":""}\n')
    assert node.run("recover", {}, check=True)[0].status == "changed"
    assert node.run("recover", {})[0].status == "changed"
    last = json.loads(journal.read_text().splitlines()[-1])
    assert (last["id"], last["phase"]) == ("x-1", "failed")
    assert node.run("recover", {})[0].status == "unchanged"


# ---------------------------------------------------------------- the request, and the controller


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "../x.run"},
        {"name": "a b"},
        {"urls": ["file:///etc/passwd"]},
        {"urls": ["http://m/$(id)"]},
        {"options": ["--x; id"]},
        {"options": ["x"]},
        {"kind": "tool"},
        {"sha256": "xyz"},
        {"version": "1; id"},
        {"unknown": "x"},
    ],
)
def test_a_request_with_words_that_a_shell_could_read_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        runfile_request("install", value() | bad)


def test_the_value_of_a_choice_is_a_request_that_the_script_takes() -> None:
    solution = solve(SolveRequest(gpus=(H100,), distro="debian:12", driver=DriverSpec(method="runfile")), KNOWLEDGE)
    assert solution.driver and solution.driver.runfile
    found = runfile_value("driver", solution.driver.runfile, proxy="http://p:3128", modules="open")
    request = runfile_request("fetch", found)
    assert request["mode"] == b"fetch\n"
    assert b"--silent\n--dkms\n" in request["options"]
    assert (request["modules"], request["proxy"]) == (b"open\n", b"http://p:3128\n")


def test_the_controller_downloads_what_a_node_cannot(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = site
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / NAME).write_bytes(TEXT)
    with pytest.raises(GpunodeError, match="404"):
        runfile_here(value(f"{url}/{NAME}"))  # no checksum beside it
    (folder / f"{NAME}.sha256sum").write_text(f"{sha(TEXT)}  {NAME}\n")
    kept = runfile_here(value(f"{url}/{NAME}"))
    assert kept.read_bytes() == TEXT
    (folder / NAME).unlink()
    assert runfile_here(value(f"{url}/{NAME}", sha256=sha(TEXT))) == kept
    with pytest.raises(GpunodeError, match="SHA-256"):
        (folder / NAME).write_bytes(b"#!other")
        runfile_here(value(f"{url}/{NAME}", sha256=sha(b"else")))
    assert [file.name for file in kept.parent.iterdir()] == [NAME]
