"""What node/commit.sh is asked, and what the action edit_file makes of its answer."""

from __future__ import annotations

import json

import pytest

from gpunode.core.edits.undo import record, undo_data
from gpunode.core.errors import InputError
from gpunode.core.model import ConfigFile, Edit, NodeFacts, Runtime, RuntimeWish
from gpunode.core.requests import FileChange, commit_request, edit_request, file_changes


def test_an_edit_compares_all_that_was_read_and_writes_the_root_last() -> None:
    root, site, drop_in = (
        "/etc/containerd/config.toml",
        "/etc/containerd/conf.d/10.toml",
        "/etc/containerd/conf.d/99-nvidia.toml",
    )
    runtime = Runtime(name="containerd", version="2.1.9", unit="containerd.service", config=root, files=(root, site))
    files = {
        root: ConfigFile(path=root, sha256="aa", mode=0o600, data=b"version = 3\n"),
        site: ConfigFile(path=site, sha256="bb", data=b""),
    }
    facts = NodeFacts(runtimes=(runtime,), files=files)
    undo = {path: record(None, data) for path, data in ((root, b"R"), (drop_in, b"D"))}
    edit = Edit(changes={root: b"R", drop_in: b"D"}, undo=undo, meant=("imports", "plugins.x"))
    request = edit_request(facts, RuntimeWish(runtime="containerd"), edit, check=True)
    assert request["changes"].decode() == (
        f"0\tread\t0644\tbb\t{root}\t{site}\n1\twrite\t0644\tabsent\t{root}\t{drop_in}\n"
        f"2\twrite\t0644\taa\t{root}\t{root}\n"
    )
    assert (request["data.1"], request["data.2"], request["check"]) == (b"D", b"R", b"1\n")
    assert request["validate"] == b"containerd\n-c\n@FILE@\nconfig\ndump\n"
    assert b"unit containerd.service\nverb restart\n" in request["after"]
    assert b"\ndump yes\nhandlers nvidia\n" in request["after"]
    assert json.loads(request["undo"]) == {"label": f"containerd {root}", **undo_data(edit.undo)}
    assert request["meant"] == b"imports\nplugins.x\n"


def test_files_of_a_role_become_changes() -> None:
    files = [{"path": "/etc/a", "content": "x", "mode": "0600"}, {"path": "/etc/b", "content": None}]
    assert file_changes(files) == [FileChange(path="/etc/a", data=b"x", mode=0o600), FileChange(path="/etc/b")]


@pytest.mark.parametrize(
    "file",
    [
        {"path": "/a", "content": 1},
        {"content": "x"},
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
