"""side_effects.sh: what is new beside packages is only said from two whole lists; units that their scripts start."""

from __future__ import annotations

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from gpunode.core.engines import shell_variables

NODE = resources.files("gpunode.node")
PARTS = """
log=$GPUNODE_IN/.log
. "$NODE/lib/base.sh"
. "$NODE/lib/common.sh"
. "$NODE/packages/side_effects.sh"
prior() { echo "$@"; }
remember_made() { sed 's/^/file /' "$GPUNODE_IN/.files"; }
"""
SCRIPT = """
list_side_effects "$GPUNODE_IN/.beside"
sed -i "$EDIT" "$GPUNODE_IN/.beside"
came_along
"""
SYSTEMCTL = """#!/bin/sh
[ "$1" = is-active ] || exit 1
shift
for unit; do
  word=$(cat "$GPUNODE_IN/$unit" 2>/dev/null)
  echo "${word:-inactive}"
done
"""
PERSISTENCED = "nvidia-persistenced.service"


@pytest.mark.parametrize(
    ("edit", "printed"),
    [
        ("", []),
        ("/^user daemon$/d", ["user daemon absent present"]),
        ("/^file .etc.group$/d", ["file /etc/group"]),
        ("$d", []),
        ("/^user /d", []),
        ("/^file /d", []),
        ("d", []),
    ],
    ids=["nothing new", "a user", "a file", "cut off", "no users", "no files", "empty"],
)
def test_a_list_that_is_not_whole_makes_nothing_pass_for_new(tmp_path: Path, edit: str, printed: list[str]) -> None:
    assert run(tmp_path, SCRIPT, EDIT=edit) == printed


@pytest.mark.parametrize(
    ("before", "after", "printed"),
    [
        ("inactive", "active", [f"active {PERSISTENCED} inactive active"]),
        ("failed", "active", [f"active {PERSISTENCED} inactive active"]),
        ("inactive", "inactive", []),
        ("active", "active", []),
        ("activating", "active", []),
        ("inactive", "", []),
        ("", "active", [f"active {PERSISTENCED} inactive active"]),
        ("active", "inactive", [f"active {PERSISTENCED} active inactive"]),
    ],
    ids=["started", "failed before", "stands still", "ran before", "began before", "gone", "new", "stopped"],
)
def test_a_unit_that_package_scripts_have_started_or_stopped_is_reported(
    before: str, after: str, printed: list[str], tmp_path: Path
) -> None:
    """One that is new, too: another branch stops it, and what it was before gpunode is not «active»."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin/systemctl").chmod(0o755)
    lists = 'list_side_effects "$GPUNODE_IN/.beside"'
    if before:
        (tmp_path / PERSISTENCED).write_text(before)
    run(tmp_path, lists)
    (tmp_path / PERSISTENCED).unlink(missing_ok=True)
    if after:
        (tmp_path / PERSISTENCED).write_text(after)
    assert run(tmp_path, "came_along") == printed


@pytest.mark.parametrize("toolkit", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_the_specification_that_the_toolkit_makes_in_its_own_time_is_kept_in_mind(
    there: bool, toolkit: bool, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    spec = tmp_path / "nvidia.yaml"
    if there:
        spec.touch()
    run(tmp_path, f'CDI={spec}\nlist_side_effects "$GPUNODE_IN/.beside"')
    if toolkit:
        (tmp_path / "bin/nvidia-ctk").write_text("#!/bin/sh\n")
        (tmp_path / "bin/nvidia-ctk").chmod(0o755)
    said = [] if there or not toolkit else [f"cdi {spec} absent present"]
    assert run(tmp_path, f"CDI={spec}\ncame_along") == said


def test_a_link_by_which_scripts_have_enabled_a_unit_is_kept_in_mind(tmp_path: Path) -> None:
    """Where the package does not take it along, it would lead to nowhere."""
    wants = tmp_path / "system/multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "old.service").symlink_to("/lib/systemd/system/old.service")
    units = f"UNITS={tmp_path}/system\n"
    run(tmp_path, units + 'list_side_effects "$GPUNODE_IN/.beside"')
    (wants / "new.path").symlink_to("/etc/systemd/system/new.path")
    (wants / "odd name.service").symlink_to("/dev/null")
    assert run(tmp_path, f"{units}came_along") == [f"link {wants}/new.path absent /etc/systemd/system/new.path"]


def run(folder: Path, text: str, **environment: str) -> list[str]:
    """What the shell says; its errors are none."""
    environment |= shell_variables() | {"GPUNODE_IN": str(folder), "NODE": str(NODE)}
    environment["PATH"] = f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(["sh", "-c", PARTS + text], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()
