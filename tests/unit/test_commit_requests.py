"""What node/commit/commit.sh is asked, and what the action edit_file makes of its answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpunode.node.plugins.action.edit_file import ActionModule
from edit_cases import edit_request

from gpunode.core.edits import RuntimeRequest
from gpunode.core.edits.commit import FileChange, commit_request, file_changes
from gpunode.core.edits.undo import record, undo_data
from gpunode.core.errors import InputError, RefusedError, StaleError
from gpunode.core.facts import masked_hash
from gpunode.core.model import ConfigFile, Edit, NodeFacts, Outcome, Runtime


def test_an_edit_compares_all_that_was_read_and_writes_the_root_last() -> None:
    root, site, drop_in = (
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/10.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    )
    runtime = Runtime(name="containerd", version="2.1.9", unit="containerd.service", config=root)
    files = {
        root: ConfigFile(path=root, sha256="aa", mode=0o600, data=b"version = 3\n"),
        site: ConfigFile(path=site, sha256="bb", data=b""),
    }
    facts = NodeFacts(runtimes=(runtime,), files=files)
    undo = {path: record(None, data) for path, data in ((root, b"R"), (drop_in, b"D"))}
    edit = Edit(changes={root: b"R", drop_in: b"D"}, undo=undo)
    request = edit_request(facts, RuntimeRequest(runtime="containerd"), edit, check=True)
    assert request["changes"].decode() == (
        f"0\tread\t0644\tbb\t{root}\t{site}\n1\twrite\t0644\tabsent\t{root}\t{drop_in}\n"
        f"2\twrite\t0644\taa\t{root}\t{root}\n"
    )
    assert (request["data.1"], request["data.2"], request["check"]) == (b"D", b"R", b"1\n")
    assert request["validate"] == b"containerd\n-c\n@FILE@\nconfig\ndump\n"
    assert b"unit containerd.service\nverb restart\n" in request["after"]
    assert b"\ndump yes\nhandlers nvidia\n" in request["after"]
    written = json.loads(json.dumps(undo_data(edit.undo)))
    assert json.loads(request["undo"]) == {"label": f"containerd {root} nvidia", **written}


def test_files_of_a_role_become_changes() -> None:
    files = [{"path": "/etc/a", "content": "x", "mode": "0600"}, {"path": "/etc/b", "content": None}]
    assert file_changes(files) == [FileChange(path="/etc/a", data=b"x", mode=0o600), FileChange(path="/etc/b")]


@pytest.mark.parametrize(
    "file",
    [
        {"path": "/a", "content": 1},
        {"content": "x"},
        {"path": "/a"},
        {"path": "/a", "contnt": "x"},
        {"path": "/a", "content": "x", "owner": "root"},
        {"path": "/a", "content": "", "mode": "rw"},
        {"path": "/a", "content": "", "mode": 644},
    ],
)
def test_files_of_a_role_that_are_no_files_are_refused(file: dict[str, object]) -> None:
    with pytest.raises(InputError):
        file_changes([file])


@pytest.mark.parametrize("path", ["relative", "/a\tb", "/a\nb", "/a/../b"])
def test_paths_that_the_request_cannot_carry_are_refused(path: str) -> None:
    with pytest.raises(InputError):
        commit_request((FileChange(path=path, data=b""),))


# ---------------------------------------------------------------- the action


class Action(ActionModule):
    """The action without Ansible: what the node says is prepared, what it is asked is kept."""

    def __init__(
        self, texts: list[bytes], outcomes: list[Outcome], toolkit: str = "1.20.1", check: bool = False
    ) -> None:
        self._task = SimpleNamespace(diff=False, check_mode=check)
        self.toolkit = toolkit
        self.texts, self.outcomes, self.asked = texts, outcomes, list[dict[str, bytes]]()

    def probe(self, *sections: str) -> tuple[str, NodeFacts]:
        path, data = "/etc/docker/daemon.json", self.texts.pop(0)
        runtime = Runtime(name="docker", version="28.5.2", unit="docker.service", config=path)
        file = ConfigFile(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data)
        toolkit = self.toolkit if "toolkit" in sections else ""
        return "", NodeFacts(runtimes=(runtime,), files={path: file}, toolkit=toolkit)

    def send(self, name: str, request: dict[str, bytes]) -> tuple[str, int]:
        return "", 0  # a node without a journal

    def node(self, name: str, request: dict[str, bytes]) -> tuple[Outcome, str]:
        self.asked.append(request)
        return self.outcomes.pop(0), ""


def masked(data: bytes) -> str:
    path = "/etc/docker/daemon.json"
    return masked_hash(ConfigFile(path=path, sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data))


STALE = Outcome(status="refused", message="changed", stale=("/etc/docker/daemon.json",))
ARGUMENTS = {"files": [], "runtimes": [{"runtime": "docker"}], "toolkit": {}, "recover": False, "expect": {}}


def test_edit_file_reads_and_edits_again_when_a_file_has_changed() -> None:
    action = Action([b'{"debug": true}\n', b'{"mtu": 1450}\n'], [STALE, Outcome(status="changed", message="done")])
    result = action.act(ARGUMENTS)
    assert (result["changed"], result.get("failed"), result["msg"]) == (True, None, "done")
    assert [b'"mtu"' in request["data.0"] for request in action.asked] == [False, True]
    assert action.asked[1]["changes"].split(b"\t")[3] == hashlib.sha256(b'{"mtu": 1450}\n').hexdigest().encode()


def test_edit_file_gives_up_after_two_more_attempts_and_says_what_changed() -> None:
    action = Action([b"{}\n"] * 9, [STALE] * 9)
    result = action.act(ARGUMENTS)
    assert (result["failed"], result["status"], result["stale"]) == (True, "refused", ["/etc/docker/daemon.json"])
    assert len(action.asked) == 3


class Engines(ActionModule):
    """The action with edits that are prepared; what a unit has to prove later is that of containerd."""

    def __init__(self, answers: Mapping[str, dict[str, object] | Exception], proof: Outcome) -> None:
        self._task = SimpleNamespace(diff=False, check_mode=False)
        self.answers, self.proof = answers, proof
        self.asked = list[tuple[str, dict[str, bytes]]]()

    def _attempt(self, value: dict[str, str], more: dict[str, bytes]) -> dict[str, object]:
        self.asked.append((value["runtime"], more))
        answer = self.answers[value["runtime"]]
        if isinstance(answer, Exception):
            raise answer
        return answer | ({"settling": ["one"]} if "later" in more else {})

    def node(self, name: str, request: dict[str, bytes]) -> tuple[Outcome, str]:
        self.asked.append((name, request))
        return self.proof, ""


DONE = {"changed": True, "msg": "done"}
LATER, ONE = {"later": b"1\n"}, {"settling": b"one\n"}
STAYS, FELL = Outcome(status="unchanged", message="stays up"), Outcome(status="rolled_back", message="fell")


SIDE = [("containerd", LATER), ("docker", ONE), ("commit.sh", ONE)]
BOTH = ("containerd", "docker")


@pytest.mark.parametrize(
    ("engines", "docker", "proof", "asked", "message"),
    [
        (BOTH[:1], DONE, STAYS, [("containerd", {})], "done"),
        (BOTH, DONE, STAYS, SIDE, "done"),
        (BOTH, {"failed": True, "msg": "refused"}, STAYS, SIDE, "done; refused"),
        (BOTH, RefusedError("away"), STAYS, SIDE, "away"),
        (BOTH, DONE, FELL, SIDE, "done; fell"),
        # a restart of containerd may take an old docker along, which would not have stayed up then
        (BOTH[::-1], DONE, STAYS, [("docker", {}), ("containerd", {})], "done"),
    ],
)
def test_containerd_is_proven_to_stay_up_once_the_others_have_started_whatever_comes_of_them(
    engines: tuple[str, ...], docker: Any, proof: Outcome, asked: list[object], message: str
) -> None:
    action = Engines({"containerd": DONE, "docker": docker}, proof)
    values = ARGUMENTS | {"runtimes": [{"runtime": name} for name in engines]}
    if isinstance(docker, Exception):
        with pytest.raises(RefusedError, match=message):
            action.act(values)
    else:
        result = action.act(values)
        assert (result["msg"], bool(result.get("failed"))) == (message, message != "done")
        assert "settling" not in result
    assert action.asked == asked


WARNING = "docker has the runtime /usr/bin/nvidia-container-runtime, and no NVIDIA Container Toolkit was found: "


@pytest.mark.parametrize(
    ("toolkit", "check", "value", "warnings"),
    [
        ("1.20.1", False, {}, []),
        (
            "",
            False,
            {"default_runtime": "runc"},
            ["no container of that runtime starts until the role toolkit installs it"],
        ),
        ("", False, {}, ["no container starts until the role toolkit installs it"]),
        ("", False, {"nvidia_runtime_path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}, []),
        ("", True, {}, []),  # a step before would have installed it
    ],
)
def test_an_engine_that_gets_a_runtime_which_is_not_on_the_node_is_warned_of(
    toolkit: str, check: bool, value: dict[str, object], warnings: list[str]
) -> None:
    action = Action([b"{}\n"], [Outcome(status="changed", message="done")] * 2, toolkit, check)  # asked once
    twice = ARGUMENTS | {"runtimes": [{"runtime": "docker", **value}] * 2}
    result = action.act(twice)
    assert result.get("warnings", []) == [WARNING + text for text in warnings] * 2


@pytest.mark.parametrize("restart", [False, True])
def test_a_plan_that_was_applied_before_finds_its_own_changes_and_asks_for_nothing(restart: bool) -> None:
    before = b"{}\n"
    planned = {"runtime": "docker", "restart": restart, "expect": {"/etc/docker/daemon.json": masked(before)}}
    arguments = ARGUMENTS | {"runtimes": [planned]}
    first = Action([before], [Outcome(status="changed", message="done")])
    assert first.act(arguments)["changed"]
    second = Action([first.asked[0]["data.0"]], [])
    result = second.act(arguments)
    assert (result["changed"], result["msg"], second.asked) == (False, "docker is configured", [])


def test_a_plan_is_refused_where_somebody_else_has_changed_a_file_that_it_is_about() -> None:
    planned = {"runtime": "docker", "expect": {"/etc/docker/daemon.json": masked(b"{}\n")}}
    action = Action([b'{"debug": true}\n'], [])
    with pytest.raises(StaleError, match="changed since the plan was made"):
        action.act(ARGUMENTS | {"runtimes": [planned]})
    assert action.asked == []
