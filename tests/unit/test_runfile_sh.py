"""runfile.sh, and the controller in its place, on files and servers that are wrong in every way."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import GpunodeError, InputError
from gpunode.core.items.runfile import needs_file, runfile_request
from gpunode.core.model import Outcome
from gpunode.core.remote import parse_outcome, program
from gpunode.edge.runfile import runfile_here
from gpunode.node import script

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]


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


@contextmanager
def encrypted(folder: Path, keys: Path, *, redirect: str = "") -> Iterator[tuple[str, Path]]:
    """A web server with TLS, or one that sends all who ask to `redirect`: its URL, and the certificate to trust."""
    certificate, key = keys / "cert.pem", keys / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*command, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    handler = functools.partial(QuietHandler, directory=str(folder))
    if redirect:
        handler = functools.partial(Redirect, directory=redirect)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}", certificate
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


USER, PASSWORD = "me", "p\\w-1$x"


class Redirect(QuietHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", f"{self.directory}{self.path}")
        self.end_headers()


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
    assert (would.status, would.texts, node.kept) == ("changed", (f"fetch {NAME}",), [])
    done, _ = node.run("fetch", asked)
    assert (done.status, done.texts) == ("changed", (f"fetched {NAME}",))
    assert node.kept == [NAME, f"{NAME}.sha256"]
    again, _ = node.run("fetch", asked)
    assert (again.status, again.message) == ("unchanged", f"{NAME} is here")


@pytest.mark.parametrize("leads_to_http", [False, True])
def test_without_a_checksum_the_one_next_to_the_file_counts_if_all_of_it_is_https(
    node: Node, site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads_to_http: bool
) -> None:
    folder, url = site
    (folder / NAME).write_bytes(TEXT)
    (folder / f"{NAME}.sha256sum").write_text(f"{sha(TEXT)}  {NAME}\n")
    plain, _ = node.run("fetch", value(f"{url}/{NAME}"))
    assert (plain.status, node.kept) == ("failed", [])
    assert "no checksum over http: set sha256" in plain.message
    with encrypted(folder, tmp_path, redirect=url if leads_to_http else "") as (secure, certificate):
        monkeypatch.setenv("CURL_CA_BUNDLE", str(certificate))
        found, _ = node.run("fetch", value(f"{secure}/{NAME}"))
    assert (found.status, node.kept) == (("failed", []) if leads_to_http else ("changed", [NAME, f"{NAME}.sha256"]))


def test_no_argument_of_a_program_on_the_node_has_a_password(node: Node, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    curl = tools / "curl"
    config = 'while [ $# -gt 1 ]; do [ "$1" != -K ] || cat "$2"; shift; done'
    curl.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/argv\n{{ {config}; }} >>{tmp_path}/config\nexit 7\n')
    curl.chmod(0o755)
    asked = value(f"https://{USER}:w-1x@mirror.lan/{NAME}", sha256=sha(TEXT), proxy=f"http://me:{PASSWORD}@p:1")
    outcome, _text = node.run("fetch", asked, path=f"{tools}:{os.environ['PATH']}")
    assert outcome.status == "failed"
    argv = (tmp_path / "argv").read_text()
    assert "--proto =https --proto-redir =https" in argv and "w-1" not in argv
    given = [json.loads(line.partition(" = ")[2]) for line in (tmp_path / "config").read_text().splitlines()]
    assert given == [asked["urls"][0], asked["proxy"]]


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
    assert node.run("install", value(), check=True)[0].texts == (f"run {NAME}",)


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


def test_the_controller_downloads_what_a_node_cannot(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, url = site
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / NAME).write_bytes(TEXT)
    (folder / f"{NAME}.sha256sum").write_text(f"{sha(TEXT)}  {NAME}\n")
    with pytest.raises(GpunodeError, match="no checksum over http"):
        runfile_here(value(f"{url}/{NAME}"))
    for redirect, raises in ((url, pytest.raises(GpunodeError, match="from https to an unencrypted")), ("", None)):
        with encrypted(folder, tmp_path, redirect=redirect) as (secure, certificate), raises or nullcontext():
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            kept = runfile_here(value(f"{secure}/{NAME}"))
    assert kept.read_bytes() == TEXT
    (folder / NAME).unlink()
    assert runfile_here(value(f"{url}/{NAME}", sha256=sha(TEXT))) == kept
    with pytest.raises(GpunodeError, match="SHA-256"):
        (folder / NAME).write_bytes(b"#!other")
        runfile_here(value(f"{url}/{NAME}", sha256=sha(b"else")))
    assert [file.name for file in kept.parent.iterdir()] == [NAME]


def test_the_compilers_first_error_is_said_however_much_follows_it(node: Node, tmp_path: Path) -> None:
    make_log = tmp_path / "make.log"
    first = "/tmp/nv.c:12:3: error: too few arguments to function 'f'"
    make_log.write_text(
        "\n".join([first, *("note: in expansion of macro" for _ in range(100)), "make: *** [Makefile:9]"])
    )
    text = script("runfile.sh").partition("# ---------------------------------------------------------------- main")[0]
    done = subprocess.run(
        [shutil.which(node.shell[0]) or "", *node.shell[1:], "-s"],
        input=program(f"{text}\ninstaller_error {tmp_path}/none {make_log}"),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == first
