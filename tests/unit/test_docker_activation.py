"""How Docker takes a change of daemon.json up: reload or restart, whom it stops, what proves it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpunode.core.edits import Activation, RuntimeRequest, activation, configure_runtime, edit_runtime
from gpunode.core.model import ConfigFile, Edit, NodeFacts, Running, Runtime

DOCKER = "/etc/docker/daemon.json"
NVIDIA = {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}
CONVERGED = json.dumps({"runtimes": {"nvidia": NVIDIA}, "default-runtime": "nvidia"}).encode()
READY = Running(count=3, names=("web", "db", "cache"), live_restore=False, knows_hook=True, reloads=True)
RESTARTS = "restarts docker.service: 3 running containers stop: web, db, cache"
RELOADS = "reloads docker.service: running containers keep running"


def request(**options: object) -> RuntimeRequest:
    return RuntimeRequest(**{"runtime": "docker", "version": "28.5.2", **options})  # type: ignore[arg-type]


def taken_up(before: bytes, after: bytes, running: Running | None = READY, **runtime: object) -> Activation:
    docker = Runtime(
        **{"name": "docker", "version": "28.5.2", "unit": "docker.service", "config": DOCKER, **runtime}  # type: ignore[arg-type]
    )
    facts = NodeFacts(
        runtimes=(docker,),
        containers={} if running is None else {"docker": running},
        files={docker.config: ConfigFile(path=docker.config, data=before)},
    )
    return activation(facts, RuntimeRequest(runtime="docker"), Edit(changes={docker.config: after}))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b"{}", CONVERGED, RELOADS),
        (b"", CONVERGED, RELOADS),
        (b'{"default-runtime": "runc", "runtimes": {"nvidia": {"path": "/old"}}}', CONVERGED, RELOADS),
        (b'{"exec-opts": ["native.cgroupdriver=cgroupfs"]}', CONVERGED, RESTARTS),
        (b'{"features": {"cdi": true}}', CONVERGED, RESTARTS),
        (CONVERGED, b'{"runtimes": {"nvidia": {"path": "/n"}}}', RESTARTS),  # the default stays with a reload
        (CONVERGED, b'{"default-runtime": "runc"}', RESTARTS),  # and so do the runtimes
        (CONVERGED, b'{"default-runtime": "runc", "runtimes": {}}', RELOADS),
        (CONVERGED, CONVERGED, RESTARTS),  # the same bytes: what dockerd starts from them is new
        (b"no json", CONVERGED, RELOADS),
    ],
)
def test_a_reload_is_asked_for_where_it_serves(before: bytes, after: bytes, words: str) -> None:
    found = taken_up(before, after)
    assert (found.disrupts, found.verb) == (words, words.partition("s ")[0])


@pytest.mark.parametrize(
    ("running", "words"),
    [
        (None, "restarts docker.service: running containers stop"),
        (Running(count=0), "restarts docker.service: no container runs"),
        (Running(count=1, names=("web",)), "restarts docker.service: 1 running container stops: web"),
        (Running(count=2), "restarts docker.service: 2 running containers stop"),
        (
            Running(count=30, names=tuple(f"web-{n}" for n in range(20))),
            "restarts docker.service: 30 running containers stop: web-0, web-1, web-2, web-3, web-4 and 25 more",
        ),
        (
            Running(count=3, names=("a", "b", "c"), live_restore=True),
            "restarts docker.service: 3 running containers keep running (live-restore)",
        ),
        (
            Running(count=1, names=("a",), live_restore=True),
            "restarts docker.service: 1 running container keeps running (live-restore)",
        ),
        (Running(count=3, names=("web", "db", "cache"), knows_hook=True), RESTARTS),  # no ExecReload
        (Running(count=3, names=("web", "db", "cache"), reloads=True), RESTARTS),  # the hook is new, or none is there
        (READY, RELOADS),
    ],
)
def test_a_restart_names_the_containers_that_stop(running: Running | None, words: str) -> None:
    assert taken_up(b"{}", CONVERGED, running).disrupts == words


@pytest.mark.parametrize(
    ("before", "flags", "words"),
    [
        (b'{"live-restore" : true}', (), "running containers keep running (live-restore)"),
        (b"{}", ("--live-restore",), "running containers keep running (live-restore)"),
        (b"{}", ("--live-restore=false",), "running containers stop"),
        (b'{"log-opts": {"live-restore": "true"}}', (), "running containers stop"),
    ],
)
def test_live_restore_counts_in_the_file_and_as_an_argument(before: bytes, flags: tuple[str, ...], words: str) -> None:
    after = configure_runtime({DOCKER: before}, request(flags=flags)).changes[DOCKER] or b""
    assert taken_up(before, after, None, flags=flags).disrupts == f"restarts docker.service: {words}"


def test_a_reload_would_forget_what_add_runtime_added() -> None:
    assert taken_up(b"{}", CONVERGED, flags=("--add-runtime", "kata=/k")).verb == "restart"


def test_an_edit_without_changes_disturbs_nothing() -> None:
    facts = NodeFacts(runtimes=(Runtime(name="docker", unit="docker.service", config=DOCKER),))
    assert activation(facts, RuntimeRequest(runtime="docker"), Edit()).disrupts == ""


def test_the_daemons_own_check_gets_the_arguments_that_may_clash_with_the_file() -> None:
    flags = ("-H", "fd://", "--config-file", "/opt/d.json", "--live-restore")
    runtime = {"binary": "/usr/sbin/dockerd", "flags": flags, "config": DOCKER}
    assert taken_up(b"{}", CONVERGED, active=True, **runtime).validate == (
        "/usr/sbin/dockerd",
        "-H",
        "fd://",
        "--live-restore",
        "--validate",
        "--config-file",
        "@FILE@",
    )
    assert taken_up(b"{}", CONVERGED, **runtime).validate[1:] == ("--validate", "--config-file", "@FILE@")


def test_health_asks_for_what_is_new_and_says_how_docker_is_asked() -> None:
    info, version, curl = taken_up(b"{}", CONVERGED).health
    assert info[:5] == ("docker", "-H", "unix:///run/docker.sock", "info", "--format")
    assert '(index .Runtimes "nvidia").Path' in info[5] and 'ne .DefaultRuntime "nvidia"' in info[5]
    assert version == ("docker", "-H", "unix:///run/docker.sock", "version")
    assert curl[:2] == ("sh", "-c") and '"nvidia":{' in curl[2]
    assert [words[0] for words in taken_up(CONVERGED, CONVERGED).health] == ["docker", "sh"]


@pytest.mark.parametrize(
    ("answer", "well"),
    [
        ('{"Runtimes":{"nvidia":{"path":"/n"},"runc":{"path":"runc"}},"DefaultRuntime":"nvidia"}', True),
        ('{"Runtimes":{"runc":{"path":"runc"}},"DefaultRuntime":"runc"}', False),
        ('{"Runtimes":{"nvidia":{"path":"/n"}},"DefaultRuntime":"runc"}', False),
        ("", False),
    ],
)
def test_without_dockers_client_the_socket_is_asked(tmp_path: Path, answer: str, well: bool) -> None:
    (tmp_path / "curl").write_text(f"#!/bin/sh\n[ -n '{answer}' ] && printf '%s' '{answer}'\n")
    (tmp_path / "curl").chmod(0o755)
    words = taken_up(b"{}", CONVERGED).health[-1]
    done = subprocess.run(words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
    assert (done.returncode == 0) is well
    nothing = subprocess.run(["/bin/sh", *words[1:]], env={"PATH": "/nonexistent"}, check=False)
    assert nothing.returncode == 0, "nobody can be asked"


def test_a_users_own_docker_is_left_to_its_user() -> None:
    path = "/home/ann/.config/docker/daemon.json"
    found = taken_up(b"{}", CONVERGED, config=path)
    assert (found.unit, found.verb, found.health) == ("", "", ())
    words = f"nothing: the rootless Docker of {path} takes it up when its user restarts it"
    assert found.disrupts == f"{words} (systemctl --user restart docker)"
    edit = configure_runtime({}, request(config=path))
    assert "no-cgroups = true" in edit.reasons[-1].why


def test_the_snaps_docker_is_its_own_unit() -> None:
    path = "/var/snap/docker/current/config/daemon.json"
    found = taken_up(b"{}", CONVERGED, None, config=path, unit="")
    assert found.disrupts == "restarts snap.docker.dockerd.service: running containers stop"
    edit = configure_runtime({}, request(config=path))
    assert "/snap/docker/current/usr/bin" in edit.reasons[-1].why
    assert configure_runtime({}, request(config=path, path="/snap/docker/current/usr/bin/x")).reasons[1:] == ()


def test_an_edit_from_a_nodes_facts_heeds_the_daemons_arguments() -> None:
    flags = ("-H", "fd://", "--config-file=/opt/d.json", "--default-runtime=crun")
    facts = NodeFacts(runtimes=(Runtime(name="docker", version="28.5.2", config=DOCKER, flags=flags),))
    edit = edit_runtime(facts, RuntimeRequest(runtime="docker"))
    assert edit.changes == {}
    assert "gives --default-runtime as an argument" in edit.problems[0].what
