"""gpunode.yml from disk, and repository keys from where the spec says, the fingerprint compared."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpunode.core.errors import GpunodeError, InputError, RefusedError
from gpunode.core.model import Repository
from gpunode.core.spec import SourceSpec, Spec, parse_spec
from gpunode.edge.load import (
    MAX_KEY,
    load_checked_data,
    load_knowledge,
    load_kube_knowledge,
    load_spec,
    load_spec_data,
    resolve_key,
)
from gpunode.edge.tables import knowledge_text

KEYS = Path(__file__).parents[1] / "cases" / "keys"
ONE = "D5A13BDF17B77D6BCF38F620BC28D7C0746B8292"
REPOSITORY = Repository(name="nvidia-cuda", url="http://mirror/cuda/", fingerprint=ONE)


def test_a_spec_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpunode.yml"
    path.write_text("driver: {branch: 580}\n")
    assert load_spec(path) == parse_spec({"driver": {"branch": 580}})
    assert load_checked_data(path) == {"driver": {"branch": 580}}


def test_an_empty_file_is_a_spec_of_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gpunode.yml"
    path.write_text("# nothing yet\n")
    assert (load_spec(path), load_checked_data(path)) == (Spec(), {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"driver:\n  branch: 580\n  branch: 570\n", "gpunode.yml:3:3: the key 'branch' stands here and in line 2"),
        (b"driver: [580\n", "gpunode.yml:1:9:"),
        (b"driver: !!python/object:os.system {}\n", "gpunode.yml:1:9: could not determine a constructor"),
        (b"a: \xff\n", "is not YAML"),
        (b"\tdriver: 1\n", "gpunode.yml:1:1:"),
        (b"x" * (MAX_KEY + 1), "has 1048577 bytes"),
        (b"dirver: {}\n", "unknown key 'dirver'"),
        (b"- driver\n", "a mapping"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_place(text: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "gpunode.yml"
    path.write_bytes(text)
    with pytest.raises(InputError) as error:
        load_spec(path)
    assert says in str(error.value)


MISTAKEN = """\
driver:
  branch: 580
  flavour: opne
cuda:
  versions: ["12.8", "12"]
  runfiles:
    "12.8": {url: ftp://x}
runtimes: {docker: {manage: never}}
proxy: {a: 1}
"""


def test_every_mistake_is_shown_with_its_line_and_a_caret(tmp_path: Path) -> None:
    path = tmp_path / "gpunode.yml"
    path.write_text(MISTAKEN)
    with pytest.raises(InputError) as error:
        load_spec(path)
    text = str(error.value).replace(str(path), "gpunode.yml")
    assert text.startswith("3 mistakes\ngpunode.yml:3:12: driver.flavour is 'opne'\n")
    assert "  3 |   flavour: opne\n    |            ^\n" in text
    assert "  8 | runtimes: {docker: {manage: never}}\n    |                             ^\n" in text
    path.write_text(MISTAKEN.replace("opne", "open").replace("never", "auto").replace("{a: 1}", "''"))
    with pytest.raises(InputError) as error:
        load_checked_data(path)
    text = str(error.value).replace(str(path), "gpunode.yml")
    assert "gpunode.yml:5:3: cuda.versions has '12'" in text
    assert "gpunode.yml:7:19: cuda.runfiles.12.8.url is 'ftp://x'" in text


def test_the_line_of_a_mistake_is_shown_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "gpunode.yml"
    path.write_text("proxy: {url: 'http://user:s3cret@proxy'}\n")
    with pytest.raises(InputError) as error:
        load_spec(path)
    assert "gpunode.yml:1:1: proxy is" in str(error.value) and "s3cret" not in str(error.value)


def test_a_merge_key_may_stand_next_to_others(tmp_path: Path) -> None:
    path = tmp_path / "gpunode.yml"
    path.write_text("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n")
    assert load_spec_data(path)["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("name", ["missing.yml", "."])
def test_a_file_that_cannot_be_read_is_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_spec(tmp_path / name)


def spec(key: str) -> Spec:
    return Spec(sources={"nvidia-cuda": SourceSpec(key=key)})


@pytest.mark.parametrize("key", [str(KEYS / "one.asc"), str(KEYS / "one.gpg"), (KEYS / "one.asc").read_text()])
def test_a_key_comes_from_a_path_or_from_its_text(key: str) -> None:
    expected = (KEYS / "one.gpg").read_bytes() if key.endswith(".gpg") else (KEYS / "one.asc").read_bytes()
    assert resolve_key(REPOSITORY, spec(key)) == expected


def test_a_key_with_another_fingerprint_is_refused_and_both_are_named() -> None:
    with pytest.raises(RefusedError) as error:
        resolve_key(REPOSITORY, spec(str(KEYS / "rsa.asc")))
    assert "E371E1E76043446DF7D5BF20E41E9B1FE88B9199" in error.value.what
    assert ONE in error.value.expected


def test_a_file_with_a_second_key_is_refused_because_that_one_could_sign_too() -> None:
    with pytest.raises(RefusedError, match="holds 2 keys"):
        resolve_key(REPOSITORY, spec(str(KEYS / "two.asc")))


def test_without_a_fingerprint_to_compare_with_nothing_is_trusted() -> None:
    unknown = Repository(name="nvidia-cuda", url="http://mirror/")
    with pytest.raises(RefusedError, match="is not known"):
        resolve_key(unknown, spec(str(KEYS / "one.asc")))


def test_a_path_that_is_wrong_is_reported_with_the_near_one() -> None:
    with pytest.raises(InputError) as error:
        resolve_key(REPOSITORY, spec(str(KEYS / "oen.asc")))
    assert error.value.fix.endswith("one.asc'?")


@pytest.fixture
def server() -> Iterator[str]:
    answers = {
        "/one.asc": (200, (KEYS / "one.asc").read_bytes()),
        "/login": (200, b"<!DOCTYPE html><html>Sign in</html>"),
        "/big": (200, b"x" * (MAX_KEY + 10)),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b"no"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_key_comes_from_a_url(server: str) -> None:
    assert resolve_key(REPOSITORY, spec(f"{server}/one.asc")) == (KEYS / "one.asc").read_bytes()


def test_without_a_key_in_the_spec_the_vendors_is_fetched(server: str) -> None:
    vendor = Repository(name="nvidia-cuda", url="http://x/", key_url=f"{server}/one.asc", fingerprint=ONE)
    assert resolve_key(vendor, Spec()) == (KEYS / "one.asc").read_bytes()


def by_file(server: str, *, key: bytes = (KEYS / "one.asc").read_bytes(), ends: str = ONE[-8:]) -> Repository:
    digest = hashlib.sha256(re.sub(rb"(?m)^Version.*\n", b"", key)).hexdigest()
    return Repository(name="nvidia-cuda", url="http://x/", key_url=f"{server}/one.asc", key_sha256=digest, key_id=ends)


def test_a_key_whose_fingerprint_nobody_published_is_known_by_its_file_and_its_id(server: str) -> None:
    assert resolve_key(by_file(server), Spec()) == (KEYS / "one.asc").read_bytes()


@pytest.mark.parametrize("other", [{"key": b"another"}, {"ends": "CDF6BA43"}])
def test_another_file_or_another_id_is_refused_with_both(server: str, other: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="is not the key that is known") as error:
        resolve_key(by_file(server, **other), Spec())
    assert ONE in error.value.what and "one fingerprint that ends in" in error.value.expected


def test_the_known_file_is_no_word_on_a_key_that_the_spec_names(server: str) -> None:
    with pytest.raises(RefusedError, match="is not known"):
        resolve_key(by_file(server), spec(f"{server}/one.asc"))


@pytest.mark.parametrize(
    ("path", "says"), [("/login", "HTML page"), ("/missing", "HTTP 404"), ("/big", "larger than 1048576 bytes")]
)
def test_what_a_server_answers_instead_of_a_key_is_reported(server: str, path: str, says: str) -> None:
    with pytest.raises(GpunodeError) as error:
        resolve_key(REPOSITORY, spec(f"{server}{path}"))
    assert says in error.value.what


def test_a_server_that_is_not_there_is_reported() -> None:
    with pytest.raises(GpunodeError, match="cannot fetch"):
        resolve_key(REPOSITORY, spec("http://127.0.0.1:1/key"))


@pytest.mark.parametrize(
    ("name", "load", "old", "new", "says"),
    [
        ("kubernetes", load_kube_knowledge, 'kube = "', 'kub = "', "kubernetes.toml: a row has no 'kube'"),
        ("kubernetes", load_kube_knowledge, 'kube = "', 'kube = "x', "kubernetes.toml: invalid literal for int()"),
        ("drivers", load_knowledge, "\neol = ", "\nend = ", "drivers.toml, cuda.toml"),
    ],
)
def test_a_row_of_the_knowledge_that_is_not_whole_is_named_with_its_file(
    name: str, load: Any, old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert old in knowledge_text(name)
    (tmp_path / f"{name}.toml").write_text(knowledge_text(name).replace(old, new, 1))
    monkeypatch.setenv("GPUNODE_KNOWLEDGE", str(tmp_path))
    with pytest.raises(InputError, match=re.escape(says)):
        load.__wrapped__()
