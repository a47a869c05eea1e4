"""What stands around the sources: workflows, hooks and templates name what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
FORMS = sorted(p for p in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")


def test_the_workflow_runs_targets_of_the_makefile_and_ci_run_and_nothing_else() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    made = {word for run in runs for word in re.findall(r"make ([a-z-]+)", run)}
    assert made == {"check", "release"} <= TARGETS
    others = [run for run in runs if "make " not in run and "apt-get" not in run]
    assert [run.split()[-1] for run in others] == [".ci/run"]
    assert all(job["timeout-minutes"] for job in jobs.values())


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_a_form_for_issues_has_what_github_asks_for(form: Path) -> None:
    data: dict[str, Any] = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(data)
    asked = [field for field in data["body"] if field["type"] != "markdown"]
    assert asked and all(field["attributes"]["label"] for field in asked)
    assert len({field["id"] for field in asked}) == len(asked)


def test_hooks_run_programs_that_make_install_brings() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    needs = " ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"])
    for hook in hooks:
        program = hook["entry"].removeprefix(".venv/bin/").split()[0]
        assert hook["entry"].startswith(".venv/bin/") and (program == "python" or program in needs)
    tests = [word for hook in hooks for word in hook["entry"].split() if word.startswith("tests/")]
    assert tests and all((ROOT / test).is_file() for test in tests)


def test_the_image_installs_what_is_locked_on_any_base() -> None:
    text = (ROOT / "Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(re.findall(r"locks/([a-z]+)\.txt", text)) == {"build", "image"}  # test_locks.py: what is in them
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${PYTHON}"] * 2  # of any registry: one argument names both
    assert re.search(r"^ARG PYTHON=\S+@sha256:[0-9a-f]{64}$", text, re.M)
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} == set(project["urls"])
    assert project["readme"] and project["keywords"] and project["authors"]
