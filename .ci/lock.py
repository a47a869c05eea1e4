"""locks/*.txt: every package of an environment in one version, with the hashes of its files.

`python .ci/lock.py` updates them to the newest that pyproject.toml allows; it needs uv (`make lock` brings it).
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# what each file is for → the extras of pyproject.toml that are in it; None: what builds a wheel
LOCKS: dict[str, tuple[str, ...] | None] = {"dev": ("dev", "docs"), "image": ("bundle", "kubernetes"), "build": None}
HEADER = "# Written by `make lock`.  pip install --require-hashes -r locks/{name}.txt\n"


def requirements(extras: tuple[str, ...] | None, pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """What pyproject.toml asks for."""
    data = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    if extras is None:
        return list(data["build-system"]["requires"])
    project = data["project"]
    return [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]


def lock(name: str) -> str:
    """The text of one file, for every Python from 3.11 on and every machine; it names no server and no path."""
    words = ["uv", "pip", "compile", "-", "--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade"]
    words += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
    asked = "\n".join(requirements(LOCKS[name]))
    done = subprocess.run(words, input=asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return HEADER.format(name=name) + done.stdout


if __name__ == "__main__":
    for name in LOCKS:
        file = ROOT / "locks" / f"{name}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(lock(name), encoding="utf-8")
