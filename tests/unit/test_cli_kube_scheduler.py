"""gpunode kube scheduler on another tree (--root): the whole way through commit.sh, without root and any kubelet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from edit_cases import case as case_of
from edit_cases import write_tree

from gpunode.cli.main import cli

MANIFEST = "etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "etc/kubernetes/scheduler-policy-config.yaml"
UNIT = "/etc/systemd/system/kube-scheduler.service"


def run(verb: str, root: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["kube", "scheduler", verb, "--root", str(root), *args], standalone_mode=False)


def tree(root: Path, case: str) -> dict[str, bytes]:
    write_tree(case_of("scheduler", case).before, root)
    return contents(root)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("etc/**/*")) if p.is_file()}


@pytest.mark.parametrize(
    ("case", "args"),
    [
        ("kubeadm-1.28", ()),
        ("kubeadm-1.32", ("--server-version", "v1.32.17")),
        ("kubeadm-1.36", ("--kube-proxy", "nftables", "--node-address", "10.0.0.4")),
        ("config-other-extender-kept", ("--manifest", f"/{MANIFEST}")),
        ("unit-1.30", ("--server-version", "1.30")),
        ("unit-drop-in", ("--unit", UNIT, "--server-version", "1.30")),
    ],
)
def test_configure_then_unconfigure_gives_every_byte_back(tmp_path: Path, case: str, args: tuple[str, ...]) -> None:
    before = tree(tmp_path, case)
    assert run("diff", tmp_path, *args).return_value == 3
    dry = run("configure", tmp_path, *args, "--dry-run")
    assert (dry.return_value, contents(tmp_path)) == (0, before)

    done = run("configure", tmp_path, *args)
    assert done.return_value == 0, done.output
    after = contents(tmp_path)
    assert after != before
    assert [path for path in set(after) - set(before) if "/manifests/" in path] == []
    assert (run("diff", tmp_path, *args).return_value, run("diff", tmp_path, *args).output) == (0, "")
    assert run("configure", tmp_path, *args).return_value == 0
    assert contents(tmp_path) == after, "the second run changes nothing"

    named = args[:2] if args[:1] in (("--unit",), ("--manifest",)) else ()  # no release is asked for
    done = run("unconfigure", tmp_path, *named)
    assert done.return_value == 0, done.output
    assert contents(tmp_path) == before
    assert run("unconfigure", tmp_path, *named).return_value == 0


def test_configure_asks_for_the_release_and_names_what_kubeadm_writes_again(tmp_path: Path) -> None:
    tree(tmp_path, "unit-1.30")
    done = run("configure", tmp_path)
    assert (done.return_value, "--server-version 1.34" in done.output) == (2, True), done.output
    other = tmp_path / "kubeadm"
    tree(other, "kubeadm-1.30")
    assert f"/{MANIFEST}: is rewritten by kubeadm upgrade" in run("configure", other).output


def test_the_backup_lies_in_the_journal_and_not_next_to_the_manifest(tmp_path: Path) -> None:
    before = tree(tmp_path, "kubeadm-1.30")
    assert run("configure", tmp_path).return_value == 0
    assert [path.name for path in (tmp_path / MANIFEST).parent.iterdir()] == ["kube-scheduler.yaml"]
    (kept,) = tmp_path.glob("var/lib/gpunode/backup/*/*.old")
    assert kept.read_bytes() == before[MANIFEST]


def test_a_new_configuration_is_no_more_readable_than_the_manifest(tmp_path: Path) -> None:
    tree(tmp_path, "kubeadm-1.30")
    (tmp_path / MANIFEST).chmod(0o600)
    assert run("configure", tmp_path).return_value == 0
    assert [(tmp_path / path).stat().st_mode & 0o777 for path in (MANIFEST, CONFIG)] == [0o600, 0o600]


def test_the_same_answer_as_json(tmp_path: Path) -> None:
    tree(tmp_path, "flags-obsolete")
    data = json.loads(run("configure", tmp_path, "--format", "json").output)
    assert {change["path"]: change["action"] for change in data["changes"]} == {
        f"/{MANIFEST}": "rewrite",
        f"/{CONFIG}": "create",
    }
    assert (data["component"], data["outcome"]["status"]) == ("kube-scheduler", "changed")
    assert {"--port", "--address"} < {reason["what"] for reason in data["reasons"]}


def test_configured_twice_with_different_urls_goes_back_to_the_beginning(tmp_path: Path) -> None:
    before = tree(tmp_path, "kubeadm-1.30")
    for host in ("10.0.0.1", "10.0.0.2"):
        assert run("configure", tmp_path, "--extender-url", f"http://{host}/gpushare-scheduler").return_value == 0
        assert host in (tmp_path / CONFIG).read_text()
    assert run("unconfigure", tmp_path).return_value == 0
    assert contents(tmp_path) == before


BAD = [
    ("kubeadm-1.30", ("--server-version", "one"), 2, "server version 'one'"),
    ("kubeadm-1.30", ("--extender-url", "gpushare"), 2, "extender URL 'gpushare'"),
    ("kubeadm-1.30", ("--manifest", "/a", "--unit", "/b", "--server-version", "1.30"), 2, "expected: one of the two"),
    ("kubeadm-1.30", ("--manifest", "/a.yaml", "--server-version", "1.30"), 5, "/a.yaml is not there"),
    ("kubeadm-1.30", ("--kube-proxy", "ipvs"), 5, "--node-address"),
    ("unit-1.30", (), 2, "--server-version"),
    ("manifest-broken", ("--server-version", "1.29"), 2, "kube-scheduler.yaml:12:3"),
    ("manifest-a-deployment", (), 5, "Deployment"),
    ("config-another-binder", (), 5, "another extender"),
]


@pytest.mark.parametrize(("case", "args", "code", "words"), BAD)
def test_bad_input_is_one_clear_message_and_nothing_changes(
    tmp_path: Path, case: str, args: tuple[str, ...], code: int, words: str
) -> None:
    before = tree(tmp_path, case)
    for verb in ("diff", "configure"):
        done = run(verb, tmp_path, *args)
        found = getattr(done.exception, "exit", done.return_value)
        assert (found, words in f"{done.output}{done.exception}") == (code, True), (done.output, done.exception)
    assert contents(tmp_path) == before


def test_a_host_without_a_scheduler_is_refused(tmp_path: Path) -> None:
    done = run("diff", tmp_path)
    assert getattr(done.exception, "exit", done.return_value) == 5
    assert "kube-scheduler is not on this host" in f"{done.output}{done.exception}"
