"""A bundle brought to where it is needed: served over HTTP, and pushed to a real sshd over a line that breaks."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_site import NEEDS_GPG, Site, cut, flip, gpunode
from sshd import Sshd

from gpunode.core.bundle.manifest import MANIFEST, SIGNATURE, Manifest, digest, manifest_bytes
from gpunode.core.errors import GpunodeError, UnreachableError
from gpunode.edge.bundle import push as module
from gpunode.edge.bundle.push import BROUGHT, PARTS, Pushed, push
from gpunode.edge.bundle.serve import server
from gpunode.edge.ssh.connection import closing

pytest.importorskip("solv")
pytest_plugins = ("bundle_fixtures",)
pytestmark = NEEDS_GPG
MIB = 1 << 20


@NEEDS_GPG
def test_serve_gives_files_and_nothing_else(site: Site) -> None:
    site.create()
    (site.bundle / "out").symlink_to(site.spec)
    with server(site.bundle, "127.0.0.1", 0) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.server_port}"
        assert "whole" in gpunode("bundle", "verify", url)
        for path, code in {"/": 403, "/repos/": 403, "/out": 404, "/../spec.yml": 404, "/%2e%2e/spec.yml": 404}.items():
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + path)
            assert (path, refused.value.code) == (path, code)
        serving.shutdown()


# ---------------------------------------------------------------- push


class Line:
    """A TCP line to a port of this machine; `breaks` says after how many bytes of ours each connection is cut."""

    def __init__(self, port: int) -> None:
        self.breaks: list[int] = []
        self.carried = 0  # bytes of ours, over all connections
        self.connections = 0
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.connections += 1
                far = socket.create_connection(("127.0.0.1", self._to))
                limit = self.breaks.pop(0) if self.breaks else -1
                for a, b, most in ((near, far, limit), (far, near, -1)):
                    threading.Thread(target=self._carry, args=(a, b, most, a is near), daemon=True).start()

    def _carry(self, a: socket.socket, b: socket.socket, most: int, ours: bool) -> None:
        carried = 0
        with contextlib.suppress(OSError):
            while piece := a.recv(1 << 15):
                b.sendall(piece)
                carried += len(piece)
                self.carried += len(piece) if ours else 0
                if 0 <= most < carried:
                    break
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits for connections
        self._listening.close()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    found = Sshd(tmp_path_factory.mktemp("sshd"), "Subsystem sftp internal-sftp")
    yield found
    found.stop()


@pytest.fixture
def line(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The way to HOST:/FOLDER, whatever HOST is, leads over this line to the sshd."""
    found = Line(sshd.port)
    with sshd.known_hosts.open("a") as known:
        known.write(f"[127.0.0.1]:{found.port} {sshd.host_public}\n")
    monkeypatch.setattr(module, "parse_host", lambda name: sshd.target(name=name, port=found.port))
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    yield found
    found.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder as a bundle is one, with a file of 16 MiB that is there twice."""
    folder = tmp_path / "bundle"
    big = os.urandom(16 * MIB)
    files = {"repos/a/big one.deb": big, "repos/b/big.deb": big, "SHA256SUMS": b"sums", "keys/k": b""}
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    written(folder)
    return folder


def written(folder: Path) -> Manifest:
    """The manifest of what lies in the folder."""
    paths = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    files = {path: digest((folder / path).read_bytes()) for path in paths if path not in (MANIFEST, SIGNATURE)}
    manifest = Manifest(gpunode="0", created="", fingerprint="", targets={}, files=files)
    (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    (folder / SIGNATURE).write_bytes(b"signature")
    return manifest


def pushed(folder: Path, there: Path) -> Pushed:
    return push(folder, written(folder), f"depot:{there}", accept_new=False, notify=lambda *_: None)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_pushed_bundle_is_whole_and_a_second_push_sends_nothing(site: Site, line: Line) -> None:
    site.create()
    there = site.folder / "srv/a depot"
    assert "all of it is whole" in gpunode("bundle", "push", site.bundle, f"root@depot:{there}")
    assert "whole" in gpunode("bundle", "verify", there)
    assert content(there) == content(site.bundle)
    assert {oct(p.stat().st_mode & 0o777) for p in there.rglob("*")} == {"0o644", "0o755"}
    before = line.carried
    assert "0 files copied" in gpunode("bundle", "push", site.bundle, f"depot:{there}")
    assert line.carried - before < 100_000


def test_a_bundle_made_again_takes_the_place_of_the_old_one(site: Site, line: Line) -> None:
    """Its lists and keys are other ones of the same size: the host compares bytes."""
    site.create()
    there = site.folder / "there"
    gpunode("bundle", "push", site.bundle, f"depot:{there}")
    (there / "repos/old.deb").write_bytes(b"")
    written(there)  # as if an older bundle had it
    site.create()
    assert f"depot:{there}: repos/old.deb removed" in gpunode("bundle", "push", site.bundle, f"depot:{there}")
    assert "does not name" not in (printed := gpunode("bundle", "verify", there))
    assert "whole" in printed
    assert content(there) == content(site.bundle)


def test_a_file_goes_on_where_the_connection_broke(bundle: Path, tmp_path: Path, line: Line) -> None:
    line.breaks = [10 * MIB, 6 * MIB]
    notify: list[tuple[int, int, int, int]] = []
    copied = push(
        bundle, written(bundle), f"depot:{tmp_path}/there", accept_new=False, notify=lambda *n: notify.append(n)
    )
    assert (copied, line.connections) == (Pushed(copied=4, removed=()), 3)
    assert content(tmp_path / "there") == content(bundle)
    assert line.carried < 24 * MIB  # 16 MiB once, and what was on its way when the line broke; not 10 + 6 + 16
    bytes_reported = [done for _, of, done, total in notify if of == 3]
    assert bytes_reported[-1] == 16 * MIB + 4


def test_what_closing_a_broken_connection_says_hides_no_error() -> None:
    class Broken:
        def close(self) -> None:
            raise EOFError

    with pytest.raises(ZeroDivisionError), closing(Broken()):
        raise ZeroDivisionError
    with closing(Broken()):
        pass


def test_a_push_that_was_killed_is_taken_up_by_the_next(bundle: Path, tmp_path: Path, line: Line) -> None:
    def killed(_files: int, _of: int, done: int, _total: int) -> None:
        if done > 12 * MIB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(bundle, written(bundle), f"depot:{tmp_path}/there", accept_new=False, notify=killed)
    assert not (tmp_path / "there" / MANIFEST).exists()
    [half] = {*(tmp_path / "there" / PARTS).iterdir()} - {tmp_path / "there" / BROUGHT}
    assert half.stat().st_size > 9 * MIB
    before = line.carried
    pushed(bundle, tmp_path / "there")
    assert line.carried - before < 8 * MIB
    assert content(tmp_path / "there") == content(bundle)  # and nothing half is left


def test_files_of_the_same_bytes_are_sent_once_and_are_one_there(bundle: Path, tmp_path: Path, line: Line) -> None:
    pushed(bundle, tmp_path / "there")
    assert (tmp_path / "there/repos/a/big one.deb").samefile(tmp_path / "there/repos/b/big.deb")
    assert line.carried < 17 * MIB


@pytest.mark.parametrize("hurt", [flip, cut, Path.unlink])
def test_a_copy_that_was_damaged_there_is_repaired(hurt: object, bundle: Path, tmp_path: Path, line: Line) -> None:
    pushed(bundle, tmp_path / "there")
    assert callable(hurt)
    hurt(tmp_path / "there/repos/b/big.deb")
    assert pushed(bundle, tmp_path / "there") == Pushed(copied=1, removed=())
    assert content(tmp_path / "there") == content(bundle)


def test_while_files_are_missing_there_is_no_manifest(bundle: Path, tmp_path: Path, line: Line) -> None:
    pushed(bundle, tmp_path / "there")
    (bundle / "repos/c.deb").write_bytes(b"more")
    seen: list[bool] = []
    manifest = written(bundle)
    notify = lambda *_: seen.append((tmp_path / "there" / MANIFEST).exists())  # noqa: E731
    push(bundle, manifest, f"depot:{tmp_path}/there", accept_new=False, notify=notify)
    assert seen[0] is False
    assert (tmp_path / "there" / MANIFEST).exists()


def test_what_only_an_older_bundle_had_is_removed_and_named(bundle: Path, tmp_path: Path, line: Line) -> None:
    there = tmp_path / "there"
    pushed(bundle, there)
    (there / "repos/a/notes").write_bytes(b"somebody's")
    (there / "index.html").write_bytes(b"somebody's")
    (bundle / "repos/b/big.deb").unlink()
    (bundle / "repos/b").rmdir()
    (bundle / "keys/k").rename(bundle / "keys/k 2")
    assert pushed(bundle, there) == Pushed(copied=1, removed=("keys/k", "repos/b/big.deb"))
    assert content(there) == content(bundle) | dict.fromkeys(("repos/a/notes", "index.html"), b"somebody's")
    assert not (there / "repos/b").exists()
    assert pushed(bundle, there) == Pushed(copied=0, removed=())


def test_a_folder_without_a_manifest_loses_nothing(bundle: Path, tmp_path: Path, line: Line) -> None:
    there = tmp_path / "there"
    (there / "repos/b").mkdir(parents=True)
    (there / "repos/b/old.deb").write_bytes(b"old")
    (there / MANIFEST).write_text('{"files": {"repos/b/old.deb": {}}}')  # no manifest of ours
    assert pushed(bundle, there).removed == ()
    assert (there / "repos/b/old.deb").exists()


def test_what_a_killed_push_of_an_older_bundle_brought_is_removed(bundle: Path, tmp_path: Path, line: Line) -> None:
    def killed(files: int, _of: int, _done: int, _total: int) -> None:
        if files == 3:
            raise KeyboardInterrupt

    there = tmp_path / "there"
    pushed(bundle, there)
    first, second = (bundle / "repos/one.deb", bundle / "repos/two.deb")
    for file in (first, second):
        file.write_bytes(file.name.encode())
    (bundle / "SHA256SUMS").write_bytes(b"others")
    with pytest.raises(KeyboardInterrupt):
        push(bundle, written(bundle), f"depot:{there}", accept_new=False, notify=killed)
    brought = [path for path in ("repos/one.deb", "repos/two.deb") if (there / path).exists()]
    assert brought
    first.unlink()
    second.unlink()
    (bundle / "keys/k").unlink()
    assert pushed(bundle, there).removed == ("keys/k", *brought)  # of the bundle before that one, too
    assert content(there) == content(bundle)


@pytest.mark.parametrize("path", ["../precious", "/precious", ".precious", "repos/../../precious"])
def test_nothing_outside_the_folder_is_removed_whatever_is_written_there(
    path: str, bundle: Path, tmp_path: Path, line: Line
) -> None:
    there = tmp_path / "there"
    for file in (tmp_path / "precious", there / ".precious"):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (there / PARTS).mkdir()
    (there / BROUGHT).write_text(f"./{path}\n{path}\n{tmp_path}{path}\n")
    assert pushed(bundle, there).removed == ()
    assert (tmp_path / "precious").exists()
    assert (there / ".precious").exists()


def test_a_line_that_stays_broken_is_said(bundle: Path, tmp_path: Path, line: Line) -> None:
    line.breaks = [MIB, *[1] * 20]
    with pytest.raises(UnreachableError) as printed:
        pushed(bundle, tmp_path / "there")
    assert "continues where it stopped" in printed.value.fix
    assert line.connections == module.TRIES
    assert not (tmp_path / "there" / MANIFEST).exists()


def test_a_host_that_never_was_there_is_said_at_once(bundle: Path, tmp_path: Path, line: Line) -> None:
    line.close()
    with pytest.raises(UnreachableError, match="refuses connections"):
        pushed(bundle, tmp_path / "there")


def test_a_folder_that_cannot_be_made_is_said(bundle: Path, tmp_path: Path, line: Line) -> None:
    (tmp_path / "a-file").touch()
    with pytest.raises(GpunodeError, match="a-file"):
        pushed(bundle, tmp_path / "a-file/there")
    assert line.connections == 1


def test_a_file_that_cannot_be_written_is_said(bundle: Path, tmp_path: Path, line: Line) -> None:
    (tmp_path / "there/repos/b/big.deb/in-the-way").mkdir(parents=True)
    with pytest.raises(GpunodeError, match="big"):
        pushed(bundle, tmp_path / "there")
    assert line.connections == 1


def test_a_host_without_sftp_is_said(
    bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Sshd(tmp_path_factory.mktemp("plain"))
    monkeypatch.setattr(module, "parse_host", lambda name: plain.target(name=name))
    with pytest.raises(GpunodeError, match="offers no SFTP"):
        pushed(bundle, tmp_path / "there")
    plain.stop()


@pytest.mark.parametrize("text", ["host", "host:folder", ":/folder", "/folder", "host:/"])
def test_a_destination_needs_a_host_and_a_folder(site: Site, text: str) -> None:
    site.create()
    assert "expected" in gpunode("bundle", "push", site.bundle, text, exit=2)
