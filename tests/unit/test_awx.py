"""The examples for AWX: ansible-builder takes the execution environment, awx.awx the templates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "docs/awx"
BIN = Path(sys.executable).parent


def test_ansible_builder_makes_a_context_with_the_wheel(tmp_path: Path) -> None:
    (tmp_path / "docs/awx").mkdir(parents=True)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/gpunode-0.0.0-py3-none-any.whl").write_text("a wheel")
    shutil.copy(EXAMPLES / "execution-environment.yml", tmp_path / "docs/awx")
    made = subprocess.run(
        [BIN / "ansible-builder", "create", "-f", "docs/awx/execution-environment.yml", "-c", "context",
         "--output-filename", "Containerfile"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    assert (tmp_path / "context/_build/wheels/gpunode-0.0.0-py3-none-any.whl").read_text() == "a wheel"
    text = (tmp_path / "context/Containerfile").read_text()
    assert "COPY _build/wheels" in text and "openssh-clients" in (tmp_path / "context/_build/bindep.txt").read_text()


def test_the_image_for_awx_has_an_ansible_core_that_the_collection_takes() -> None:
    core = yaml.safe_load((EXAMPLES / "execution-environment.yml").read_text())["dependencies"]["ansible_core"]
    collection = EXAMPLES.parents[1] / "gpunode/collection/ansible_collections/gpunode/node"
    needs = yaml.safe_load((collection / "meta/runtime.yml").read_text())["requires_ansible"]
    assert core["package_pip"] == f"ansible-core{needs.removesuffix('.0')}"


@pytest.mark.skipif(not find_spec("ansible_collections.awx"), reason="awx.awx is not installed (extra molecule)")
def test_awx_knows_every_argument_of_the_templates(tmp_path: Path) -> None:
    [play] = yaml.safe_load((EXAMPLES / "templates.yml").read_text())
    for task in play["tasks"]:
        task["ignore_errors"] = True  # nothing listens there: what counts is how far each gets
    (tmp_path / "templates.yml").write_text(yaml.safe_dump([play]))
    nowhere = {"CONTROLLER_HOST": "http://127.0.0.1:9", "CONTROLLER_OAUTH_TOKEN": "no-such-token", "NO_COLOR": "1"}
    ran = subprocess.run(
        [BIN / "ansible-playbook", "templates.yml"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, **nowhere},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nsupported param" not in ran.stdout and "missing required" not in ran.stdout, ran.stdout
    assert ran.stdout.count("Connection refused") >= len(play["tasks"])


def test_the_project_has_the_playbook_that_the_templates_name() -> None:
    [play] = yaml.safe_load((EXAMPLES / "templates.yml").read_text())
    named = {t["awx.awx.job_template"]["playbook"] for t in play["tasks"] if "awx.awx.job_template" in t}
    assert all((EXAMPLES / name).is_file() for name in named)
    [imported] = yaml.safe_load((EXAMPLES / "provision.yml").read_text())
    assert imported["ansible.builtin.import_playbook"] == "gpunode.node.provision"
