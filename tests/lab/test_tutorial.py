"""The tutorial, followed word for word: a copy of the tracked files, a virtual environment of its own, a lab node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from page import Reader

from gpunode import lab as labs
from gpunode.lab import Lab
from gpunode.lab.nodes import load_nodes

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.lab


def test_the_tutorial(lab_up: Callable[..., Lab], tmp_path: Path) -> None:
    clone = tmp_path / "gpunode"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "XDG_STATE_HOME")}
    python = Path(os.path.realpath(sys.executable)).parent
    reader = Reader(clone, kept | {"PATH": f"{python}:/usr/sbin:/usr/bin:/sbin:/bin"})
    try:
        assert reader.follow((ROOT / "docs/tutorial.md").read_text()) > 20
    finally:
        reader.close()
        if any(node.lab == "tutorial" for node in load_nodes()):  # the page has not come to its end
            labs.down(["tutorial"])
