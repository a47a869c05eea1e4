"""node/beside.sh: what is new beside packages is only said from two whole lists."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

import pytest

PART = resources.files("gpunode.node") / "beside.sh"
SCRIPT = """
log=$GPUNODE_IN/.log
. "$PART"
prior() { echo "$1 $2"; }
remember_made() { sed 's/^/file /' "$GPUNODE_IN/.files"; }
beside "$GPUNODE_IN/.beside"
sed -i "$EDIT" "$GPUNODE_IN/.beside"
came_along
"""


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("", []),
        ("/^user daemon$/d", ["user daemon"]),
        ("/^file .etc.group$/d", ["file /etc/group"]),
        ("$d", []),
        ("/^user /d", []),
        ("/^file /d", []),
        ("d", []),
    ],
    ids=["nothing new", "a user", "a file", "cut off", "no users", "no files", "empty"],
)
def test_a_list_that_is_not_whole_makes_nothing_pass_for_new(tmp_path: Path, edit: str, said: list[str]) -> None:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "GPUNODE_IN": str(tmp_path),
        "PART": str(PART),
        "EDIT": edit,
    }
    done = subprocess.run(["sh", "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (said, "")
