"""node/commit/commit.sh and files: bytes, modes, owners, labels, what is in the way, what is kept."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pytest
from commit_node import Node, sha, unit

from gpunode.core.edits.commit import FileChange, commit_request

pytest_plugins = ("commit_fixtures",)

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="owners and labels need root")


def test_a_new_file_gets_its_bytes_its_mode_and_its_folders(node: Node) -> None:
    data = bytes(range(256)) * 300
    path = node.root / "etc/a b/c/new.conf"
    outcome = node.run(FileChange(path=str(path), data=data, mode=0o640, expect=""))
    assert (outcome.status, outcome.texts) == ("changed", (f"creates {path}",))
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_a_new_file_gets_the_label_of_the_policy_and_one_that_is_there_keeps_its_own(node: Node) -> None:
    node.shim("restorecon", '#!/bin/sh\necho "$*" >>"$NODE/labelled"\n')
    path = node.root / "etc/new.conf"
    node.run(FileChange(path=str(path), data=b"new\n"), FileChange(path=str(node.config), data=b"new\n"))
    assert (node.root / "labelled").read_text() == f"{path}\n"


def test_a_file_that_is_there_keeps_its_mode_and_a_link_its_target(node: Node) -> None:
    link = node.root / "etc/link"
    link.symlink_to("config")
    outcome = node.run(FileChange(path=str(link), data=b"new\n", mode=0o600, expect=sha("old\n")))
    assert outcome.status == "changed"
    assert link.is_symlink()
    assert node.config.read_text() == "new\n"
    assert node.config.stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_as_it_should_be_is_not_written(node: Node) -> None:
    before = node.config.stat()
    outcome = node.run(FileChange(path=str(node.config), data=b"old\n"), after=unit(node))
    assert (outcome.status, outcome.texts, node.notified(), node.journal) == ("unchanged", (), [], [])
    after = node.config.stat()  # reading it may move its access time, and nothing else
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_a_file_is_removed_and_one_that_is_not_there_need_not_be(node: Node) -> None:
    assert node.run(FileChange(path=str(node.config), expect=sha("old\n"))).texts == (f"removes {node.config}",)
    assert not node.config.exists()
    assert node.run(FileChange(path=str(node.config))).status == "unchanged"


def test_check_mode_says_what_would_change_and_changes_nothing(node: Node) -> None:
    new = node.root / "etc/new"
    changes = (FileChange(path=str(new), data=b"x"), FileChange(path=str(node.config), data=b"y"))
    outcome = node.run(*changes, after=unit(node), check=True)
    assert outcome.status == "changed"
    assert outcome.texts == (f"creates {new}", f"rewrites {node.config}")
    assert (new.exists(), node.config.read_text(), node.state.exists(), node.notified()) == (False, "old\n", False, [])


@pytest.mark.parametrize(("read", "expect"), [(False, sha("older\n")), (False, ""), (True, sha("older\n"))])
def test_a_file_that_changed_since_it_was_read_stops_all(dash: Node, read: bool, expect: str) -> None:
    new = dash.root / "etc/new"
    outcome = dash.run(
        FileChange(path=str(new), data=b"x"), FileChange(path=str(dash.config), data=b"new", expect=expect, read=read)
    )
    assert (outcome.status, outcome.stale) == ("refused", (str(dash.config),))
    assert outcome.message == f"{dash.config} changed since it was read"
    assert outcome.fix
    assert (new.exists(), dash.config.read_text(), outcome.texts) == (False, "old\n", ())


def test_what_is_in_the_way_is_named(dash: Node) -> None:
    dangling = dash.root / "etc/dangling"
    dangling.symlink_to("nowhere")
    printed = {
        path: dash.run(FileChange(path=str(path), data=b"x"))
        for path in (dangling, dash.config.parent, dash.config / "below")
    }
    assert {o.status for o in printed.values()} == {"refused"}
    assert all(o.fix for o in printed.values())
    assert printed[dangling].message == f"{dangling} is a symbolic link that leads nowhere (nowhere)"
    assert printed[dash.config.parent].message == f"{dash.config.parent} is a directory"
    assert printed[dash.config / "below"].message.startswith(f"{dash.config} is a file, and")


def test_a_write_that_fails_leaves_every_file_as_it_was(node: Node) -> None:
    first, folder = node.root / "etc/first", node.root / "etc/made/by/us"
    full = 'case "$*" in *.1\\ *) echo "dd: No space left on device" >&2; exit 1 ;; esac'
    node.shim("dd", f'#!/bin/sh\n{full}\nexec /usr/bin/dd "$@"\n')
    outcome = node.run(
        FileChange(path=str(folder / "first"), data=b"x"),
        FileChange(path=str(node.config), data=b"new"),
        after=unit(node),
    )
    assert outcome.status == "rolled_back"
    assert "No space left on device" in outcome.message
    assert outcome.fix
    assert (first.exists(), (node.root / "etc/made").exists()) == (False, False)
    assert (node.config.read_text(), node.notified(), node.leftovers, node.unfinished) == ("old\n", [], [], set())


def test_no_room_for_the_backup_stops_before_the_first_write(dash: Node) -> None:
    dash.shim("cp", '#!/bin/sh\necho "cp: No space left on device" >&2\nexit 1\n')
    outcome = dash.run(FileChange(path=str(dash.config), data=b"new"))
    assert outcome.status == "failed"
    assert "cannot keep a backup" in outcome.message
    assert (dash.config.read_text(), dash.journal) == ("old\n", [])


def test_secrets_stay_out_of_the_journal_and_backups_are_private(dash: Node) -> None:
    dash.config.write_text('password = "hunter2"\n')
    dash.run(FileChange(path=str(dash.config), data=b'password = "hunter3"\n'))
    assert "hunter" not in (dash.state / "journal.jsonl").read_text()
    assert dash.state.stat().st_mode & 0o777 == 0o700
    assert (dash.state / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_journal_lines_are_json_whatever_the_path(dash: Node) -> None:
    path = dash.root / 'etc/a "b" \\c'
    assert dash.run(FileChange(path=str(path), data=b"x")).status == "changed"
    assert [line["phase"] for line in dash.journal] == ["intent", "done"]
    assert dash.journal[0]["files"] == [{"path": str(path), "before": "absent", "after": sha("x")}]


def test_a_link_in_a_folders_place_that_leads_nowhere_is_named(dash: Node) -> None:
    (dash.root / "etc/gone").symlink_to("nowhere")
    outcome = dash.run(FileChange(path=str(dash.root / "etc/gone/new"), data=b"x"))
    assert outcome.status == "refused"
    assert outcome.message == f"{dash.root}/etc/gone is a symbolic link that leads nowhere (nowhere)"


# ---------------------------------------------------------------- owners and labels


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX ACL as the kernel stores it: version 2, then tag, permission, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NOBODY = 65534
FOR_NOBODY = acl((1, 6, 2**32 - 1), (2, 4, NOBODY), (4, 0, 2**32 - 1), (0x10, 4, 2**32 - 1), (0x20, 0, 2**32 - 1))


@ROOT
@pytest.mark.parametrize("text", ["new\n", "broken\n"])
def test_owner_acl_and_extended_attributes_stay_also_through_a_rollback(node: Node, text: str) -> None:
    link = node.root / "etc/link"
    link.symlink_to("config")
    os.chown(node.config, 1, NOBODY)
    try:
        os.setxattr(node.config, "user.owner", b"somebody")
        os.setxattr(node.config, "system.posix_acl_access", FOR_NOBODY)
    except OSError:
        pytest.skip("a file system without extended attributes or ACLs")
    outcome = node.run(FileChange(path=str(link), data=text.encode()), after=unit(node))
    assert node.config.read_text() == ("old\n" if text == "broken\n" else "new\n")
    after = node.config.stat()
    assert (after.st_uid, after.st_gid, after.st_mode & 0o777) == (1, NOBODY, 0o640)
    if node.shell == "busybox":
        assert any("no ACL and no extended attributes" in note for note in outcome.notes), "its cp cannot"
        return
    assert os.getxattr(node.config, "user.owner") == b"somebody"
    assert os.getxattr(node.config, "system.posix_acl_access") == FOR_NOBODY


@ROOT
@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o640, 0o640), (0o664, 0o644), (0o444, 0o444)])
def test_a_new_file_is_never_more_readable_than_the_one_it_is_like(node: Node, mode: int, expected: int) -> None:
    node.config.chmod(mode)
    os.chown(node.config, 1, NOBODY)
    path = node.root / "etc/conf.d/99.toml"
    node.run(FileChange(path=str(path), data=b"x", like=str(node.config)))
    found = path.stat()
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (expected, 1, NOBODY)


@ROOT
def test_a_new_file_gives_its_group_nothing_where_an_acl_decides_on_the_one_it_is_like(dash: Node) -> None:
    try:
        os.setxattr(dash.config, "system.posix_acl_access", FOR_NOBODY)
    except OSError:
        pytest.skip("a file system without ACLs")
    path = dash.root / "etc/99.toml"
    dash.run(FileChange(path=str(path), data=b"x", like=str(dash.config)))
    assert (dash.config.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o640, 0o600)


# ---------------------------------------------------------------- where bytes lie meanwhile


@pytest.mark.parametrize("folder", ["crio.conf.d", "manifests", "plain"])
def test_no_unfinished_file_lies_in_a_folder_whose_every_file_is_read(dash: Node, folder: str) -> None:
    place = dash.root / "etc" / folder
    place.mkdir()
    (place / "old").write_text("old\n")
    dash.shim("mv", f'#!/bin/sh\nls -A "{place}" >>"{dash.root}/seen"\nexec /bin/mv "$@"\n')
    outcome = dash.run(FileChange(path=str(place / "new"), data=b"x"), FileChange(path=str(place / "old"), data=b"y"))
    assert outcome.status == "changed"
    seen = (dash.root / "seen").read_text().split()
    assert any(name.startswith(".gpunode") for name in seen) == (folder == "plain")
    assert (sorted(p.name for p in place.iterdir()), dash.leftovers) == (["new", "old"], [])


def test_every_file_is_written_before_the_first_one_is_replaced(dash: Node) -> None:
    changes = [FileChange(path=str(dash.root / f"etc/{n}"), data=b"x") for n in range(3)]
    dash.shim("dd", f'#!/bin/sh\nls "{dash.root}/etc" >>"{dash.root}/seen"\nexec /bin/dd "$@"\n')
    assert dash.run(*changes).status == "changed"
    assert (dash.root / "seen").read_text().split() == ["config"] * 3


def test_a_file_that_changes_after_the_comparison_is_left_and_the_rest_put_back(dash: Node) -> None:
    first = dash.root / "etc/first"
    dash.shim("dd", f'#!/bin/sh\necho "by hand" >"{dash.config}"\nexec /bin/dd "$@"\n')
    outcome = dash.run(FileChange(path=str(first), data=b"x"), FileChange(path=str(dash.config), data=b"y"))
    assert (outcome.status, outcome.stale) == ("refused", (str(dash.config),))
    assert (first.exists(), dash.config.read_text(), dash.leftovers) == (False, "by hand\n", [])
    assert dash.unfinished == set()


# ---------------------------------------------------------------- what is kept


def records(label: str) -> dict[str, bytes]:
    return {"undo": f'{{"label": "{label}"}}\n'.encode()}


def test_the_undo_record_is_kept_when_the_edit_stands_and_renamed_when_it_is_used_up(node: Node) -> None:
    change = FileChange(path=str(node.config), data=b"new\n")
    request = commit_request((change,), after=replace(unit(node), settle=0))
    assert node.ask(request | records("engine /etc/config")).status == "changed"
    [kept] = node.backups("undo.json")
    record = node.state / "backup" / kept / "undo.json"
    assert record.read_text() == '{"label": "engine /etc/config"}\n'
    assert record.stat().st_mode & 0o777 == 0o600

    back = commit_request((FileChange(path=str(node.config), data=b"broken\n"),), after=replace(unit(node), settle=0))
    assert node.ask(back | {"used": f"{kept}\n".encode()}).status == "rolled_back"
    assert (node.backups("undo.json"), node.backups("undo.used.json")) == ([kept], [])
    back = commit_request((FileChange(path=str(node.config), data=b"old\n"),), after=replace(unit(node), settle=0))
    assert node.ask(back | {"used": f"{kept}\n".encode()}).status == "changed"
    assert (node.backups("undo.json"), node.backups("undo.used.json")) == ([], [kept])


def test_a_folder_that_an_edit_created_goes_with_it_when_it_is_empty(dash: Node) -> None:
    drop_in = dash.root / "etc/made/conf.d/x"
    assert dash.run(FileChange(path=str(drop_in), data=b"x")).status == "changed"
    made = str(dash.journal[0]["id"])
    back = commit_request((FileChange(path=str(drop_in)),)) | {"used": f"{made}\n".encode()}
    assert dash.ask(back).status == "changed"
    assert [path.name for path in (dash.root / "etc").iterdir()] == ["config"]


def test_an_edit_that_is_rolled_back_leaves_no_undo_record(dash: Node) -> None:
    request = commit_request(
        (FileChange(path=str(dash.config), data=b"broken\n"),), after=replace(unit(dash), settle=0)
    )
    assert dash.ask(request | records("engine")).status == "rolled_back"
    assert (dash.backups("undo.json"), dash.backups("undo")) == ([], [])


def test_transactions_sort_by_their_order_and_old_ones_are_forgotten(dash: Node) -> None:
    request = commit_request((FileChange(path=str(dash.config), data=b"first\n"),))
    assert dash.ask(request | records("engine")).status == "changed"
    ids = [str(line["id"]) for line in dash.journal]
    for n in range(22):
        dash.write(f"{n}\n")
        ids.append(str(dash.journal[-1]["id"]))
    assert ids == sorted(ids)
    kept = sorted(path.name for path in (dash.state / "backup").iterdir())
    assert kept == [ids[0], *ids[-20:]], "the newest, and the one whose undo record is still of use"


@pytest.mark.timeout(60)
def test_a_thousand_old_transactions_are_forgotten_at_once(dash: Node) -> None:
    for n in range(1000):
        folder = dash.state / f"backup/20250101T000000Z-files-{n:06}"
        folder.mkdir(parents=True)
        (folder / "plan").write_text("\t".join("1234567") + ("\t/etc/y\n" if n == 5 else "\t/etc/x\n"))
    dash.write("new\n")
    left = sorted(path.name for path in (dash.state / "backup").iterdir() if "-files-" in path.name)
    assert [name[-6:] for name in left[:2]] == ["000000", "000005"], "the first of /etc/x, and the only one of /etc/y"
    assert len(left) == 2 + 20
