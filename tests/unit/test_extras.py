"""What a missing package is installed with: pip or pipx, an index or a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpunode.edge import extras
from gpunode.edge.isolate import as_error


class Distribution:
    def __init__(self, url: str, *, editable: bool = False) -> None:
        self._text = json.dumps({"url": url, "dir_info": {"editable": editable}}) if url else None

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._text


@pytest.mark.parametrize(
    ("url", "editable", "pipx", "command"),
    [
        ("", False, False, "pip install 'gpunode[bundle]'"),
        ("", False, True, "pipx install --force 'gpunode[bundle]'"),
        ("file://{tmp}", False, False, "pip install '{tmp}[bundle]'"),
        ("file://{tmp}", True, False, "pip install -e '{tmp}[bundle]'"),
        ("file://{tmp}/gone", False, False, "pip install 'gpunode[bundle]'"),
        ("https://example.org/gpunode.whl", False, False, "pip install 'gpunode[bundle]'"),
    ],
)
def test_an_extra_comes_from_where_gpunode_came_from(
    url: str, editable: bool, pipx: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Distribution(url.format(tmp=tmp_path), editable=editable))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if pipx:
        (tmp_path / "pipx_metadata.json").write_text("{}")
    assert extras.install_command("bundle") == command.format(tmp=tmp_path)


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Distribution(""))
    error = as_error(ModuleNotFoundError("No module named 'rich.live'", name="rich.live"))
    assert "rich" in error.what and error.fix.startswith("pip install")
