"""locks/*.txt: all that pyproject.toml asks for, each file by its hash, and no word of where it was fetched."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci/lock.py")
assert spec and spec.loader
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)( ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def locked(name: str, python: str) -> dict[str, str]:
    """Package → version, for one Python on Linux."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux",
            "platform_system": "Linux", "implementation_name": "cpython", "os_name": "posix",
            "platform_python_implementation": "CPython", "platform_machine": "x86_64"}  # fmt: skip
    text = (ROOT / f"locks/{name}.txt").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for package, version, marker, _ in ENTRY.findall(text):
        one = Requirement(f"{package}=={version}{marker}")
        if not one.marker or one.marker.evaluate(here):
            assert package not in found, f"{package} stands there twice"
            found[package] = version
    return found


@pytest.mark.parametrize("name", lock.LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_each_requirement_in_a_version_that_it_allows(name: str, python: str) -> None:
    there = locked(name, python)
    for one in map(Requirement, lock.requirements(lock.LOCKS[name])):
        if not one.marker or one.marker.evaluate({"python_version": python, "extra": ""}):
            assert one.specifier.contains(there[canonicalize_name(one.name)]), f"{one}: run make lock"


@pytest.mark.parametrize("name", lock.LOCKS)
def test_a_lock_is_versions_and_hashes_and_names_no_place(name: str) -> None:
    text = (ROOT / f"locks/{name}.txt").read_text(encoding="utf-8")
    head, *_ = text.split("\n", 1)
    assert head == lock.HEADER.format(name=name).strip()
    assert ENTRY.sub("", text) == f"{head}\n"
    assert re.search(r"://|/(opt|work|home|root|usr|tmp)/|--(index|extra-index|find-links|trusted)| @ ", text) is None


def test_every_upper_bound_has_its_reason_behind_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    every = [*project["dependencies"], *extras["bundle"], *extras["kubernetes"]]
    explained = set(re.findall(r'^  "(.+)", # \S', text, re.M))
    for one in every:
        requirement = Requirement(one)
        bounded = any(part.operator in ("<", "==") for part in requirement.specifier)
        assert bounded is (one in explained), one
        version = locked("image", "3.13")[canonicalize_name(requirement.name)]
        assert bounded or not version.startswith("0."), f"{one}: 0.x promises nothing"


def test_the_image_installs_by_hashes_alone() -> None:
    runs = re.findall(r"pip (?:install|wheel)[^&\n]*", (ROOT / "Containerfile").read_text(encoding="utf-8"))
    assert len(runs) == 4
    assert [run for run in runs if "--require-hashes" not in run and "--no-deps" not in run] == []
