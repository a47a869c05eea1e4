"""gpunode runtime on another tree (--root): the whole way through commit.sh, without root and without any engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpunode.cli.main import cli
from gpunode.core.model import NodeFacts, Outcome, Runtime
from gpunode.edge.host import runtimes, target

DOCKER = '{\n  "log-driver": "journald"\n}\n'
TOML = 'version = 2\n\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "pause:3.9" # ours\n'
ENGINES = [
    ("docker", "etc/docker/daemon.json", DOCKER, ("--engine-version", "26.1.5")),
    ("containerd", "etc/containerd/config.toml", TOML, ("--engine-version", "1.7.24")),
    ("containerd", "etc/containerd/config.toml", TOML, ("--engine-version", "2.1.9")),
]


def run(verb: str, root: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["runtime", verb, "--root", str(root), *args], standalone_mode=False)


def tree(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(("engine", "path", "text", "args"), ENGINES)
def test_configure_then_unconfigure_gives_every_byte_back(
    tmp_path: Path, engine: str, path: str, text: str, args: tuple[str, ...]
) -> None:
    file = tree(tmp_path, path, text)
    file.chmod(0o640)
    args = ("--runtime", engine, *args)
    assert run("status", tmp_path, *args).return_value == 3
    assert run("diff", tmp_path, *args, "--set-as-default").return_value == 3

    done = run("configure", tmp_path, *args, "--set-as-default")
    assert done.return_value == 0, done.output
    assert file.stat().st_mode & 0o777 == 0o640
    assert run("status", tmp_path, *args, "--set-as-default").return_value == 0
    diff = run("diff", tmp_path, *args, "--set-as-default")
    assert (diff.return_value, diff.output) == (0, "")
    before = contents(tmp_path / "etc")
    assert run("configure", tmp_path, *args, "--set-as-default").return_value == 0
    assert contents(tmp_path / "etc") == before, "the second run changes nothing"

    done = run("unconfigure", tmp_path, *args)
    assert done.return_value == 0, done.output
    assert contents(tmp_path / "etc") == {path.removeprefix("etc/"): text.encode()}
    assert run("unconfigure", tmp_path, *args).return_value == 0
    assert contents(tmp_path / "etc") == {path.removeprefix("etc/"): text.encode()}


UNIT = "usr/lib/systemd/system"
DROP_IN = "[Service]\nExecStart=\nExecStart="
# unit files of a tree, the command's arguments, then the file that is written, or what is refused
STARTED = [
    (
        {
            f"{UNIT}/docker.service": "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n",
            "etc/systemd/system/docker.service.d/gpu.conf": f"{DROP_IN}/usr/bin/dockerd --default-runtime=nvidia\n",
        },
        ("--runtime", "docker", "--engine-version", "28.5.2", "--set-as-default"),
        "etc/docker/daemon.json",
        '"runtimes"',
    ),
    (
        {
            f"{UNIT}/docker.service": "[Service]\nEnvironmentFile=-/etc/sysconfig/docker\n"
            "ExecStart=/usr/bin/dockerd $OPTIONS\n",
            "etc/sysconfig/docker": 'OPTIONS="--default-runtime=runc --exec-opt native.cgroupdriver=systemd"\n',
        },
        ("--runtime", "docker", "--engine-version", "28.5.2", "--set-as-default"),
        "",
        "--default-runtime",
    ),
    (
        {f"{UNIT}/docker.service": "[Service]\nExecStart=/usr/bin/dockerd --config-file=/etc/docker/gpu.json\n"},
        ("--runtime", "docker", "--engine-version", "28.5.2"),
        "etc/docker/gpu.json",
        '"runtimes"',
    ),
    (
        {f"{UNIT}/containerd.service": "[Service]\nExecStart=/usr/bin/containerd --config /etc/containerd/gpu.toml\n"},
        ("--runtime", "containerd", "--engine-version", "1.7.24"),
        "etc/containerd/gpu.toml",
        "nvidia",
    ),
    (
        {f"{UNIT}/crio.service": "[Service]\nExecStart=/usr/bin/crio --config-dir /etc/crio/gpu.d\n"},
        ("--runtime", "crio", "--engine-version", "1.30"),
        "etc/crio/gpu.d/99-nvidia.toml",
        "nvidia",
    ),
    (
        {
            "etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n"
            "\t'--default-runtime=crun' \\\n\t'--data-dir=/srv/k3s' \\\n"
        },
        ("--runtime", "containerd", "--set-as-default"),
        "",
        "--default-runtime crun",
    ),
]


@pytest.mark.parametrize(
    ("drop_in", "said"),
    [
        ("[Service]\nExecStart=\nExecStart=/usr/bin/docker run docker:dind\n", "runs dockerd in a container of docker"),
        ("", "/etc/systemd/system/docker.service.d/gpu.conf is a symbolic link that leads nowhere"),
    ],
)
def test_a_unit_of_a_tree_that_does_not_say_the_flags_is_named(tmp_path: Path, drop_in: str, said: str) -> None:
    path = tree(tmp_path, "etc/systemd/system/docker.service.d/gpu.conf", drop_in)
    tree(tmp_path, f"{UNIT}/docker.service", "[Service]\nExecStart=/usr/bin/dockerd -H fd://\n")
    if not drop_in:
        path.unlink()
        path.symlink_to("/dev/none")
    done = run("configure", tmp_path, "--runtime", "docker", "--engine-version", "28.5.2")
    assert done.return_value == 0, done.output
    assert f"/{UNIT}/docker.service: does not say which flags dockerd has: " in done.output
    assert said in done.output
    assert "runtimes" in (tmp_path / "etc/docker/daemon.json").read_text()


@pytest.mark.parametrize(("units", "args", "written", "shown"), STARTED)
def test_the_units_of_a_tree_decide_which_file_and_what_is_refused(
    tmp_path: Path, units: dict[str, str], args: tuple[str, ...], written: str, shown: str
) -> None:
    for path, text in units.items():
        tree(tmp_path, path, text)
    before = contents(tmp_path)
    done = run("configure", tmp_path, *args)
    new = {path: data.decode() for path, data in contents(tmp_path).items() if path not in before}
    found = {path: text for path, text in new.items() if path.startswith("etc/")}
    if written:
        assert (done.return_value, list(found)) == (0, [written]), done.output
        assert shown in found[written]
        assert '"default-runtime"' not in found[written]
    else:
        assert (done.return_value, found) == (5, {}), done.output
        assert shown in done.output


def test_the_specification_of_cdi_and_a_setting_that_goes_are_named_in_a_tree(tmp_path: Path) -> None:
    done = run("configure", tmp_path, "--runtime", "docker", "--engine-version", "28.5.2", "--cdi")
    assert "the CDI specification: it is not made for another tree" in done.output
    tree(tmp_path, "etc/rancher/k3s/config.yaml", "default-runtime: nvidia\n")
    done = run("unconfigure", tmp_path, "--runtime", "containerd", "--distribution", "k3s")
    assert "/etc/rancher/k3s/config.yaml: removes default-runtime" in done.output


def test_a_damaged_undo_record_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    tree(tmp_path, "etc/docker/daemon.json", DOCKER)
    assert run("configure", tmp_path, "--runtime", "docker").return_value == 0
    (record,) = tmp_path.glob("var/lib/gpunode/backup/*/undo.json")
    record.write_text(record.read_text().replace("hunks", "hunk"))
    before = contents(tmp_path / "etc")
    done = run("unconfigure", tmp_path, "--runtime", "docker")
    assert (done.return_value, str(record) in done.output) == (2, True)
    record.unlink()
    assert contents(tmp_path / "etc") == before
    assert run("unconfigure", tmp_path, "--runtime", "docker").return_value == 0
    assert "nvidia" not in (tmp_path / "etc/docker/daemon.json").read_text()


def test_lines_that_were_added_since_stay_when_configure_is_undone(tmp_path: Path) -> None:
    file = tree(tmp_path, "etc/docker/daemon.json", '{\n  "debug": true,\n  "log-driver": "journald"\n}\n')
    assert run("configure", tmp_path, "--runtime", "docker").return_value == 0
    file.write_text(file.read_text().replace('"debug": true', '"debug": false,\n  "mtu": 1400'))
    assert run("unconfigure", tmp_path, "--runtime", "docker").return_value == 0
    assert file.read_text() == '{\n  "debug": false,\n  "mtu": 1400,\n  "log-driver": "journald"\n}\n'


def test_the_python_that_the_documentation_shows_runs() -> None:
    page = (Path(__file__).parents[2] / "docs/runtime.md").read_text()
    shown = page.partition("```python\n")[2].partition("```")[0]
    assert "assert unconfigure_runtime" in shown
    exec(shown, {})


def test_dry_run_and_diff_write_nothing_and_show_the_same_diff(tmp_path: Path) -> None:
    tree(tmp_path, "etc/docker/daemon.json", DOCKER)
    dry = run("configure", tmp_path, "--runtime", "docker", "--dry-run")
    assert dry.return_value == 0
    diff = run("diff", tmp_path, "--runtime", "docker")
    assert diff.output
    assert diff.output in dry.output
    assert contents(tmp_path) == {"etc/docker/daemon.json": DOCKER.encode()}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("verb", ["status", "diff", "configure", "unconfigure"])
@pytest.mark.parametrize(
    "text",
    [
        '{"registry-mirrors": ["https://user:hunter2@mirror"]}',
        '{"labels": ["token=hunter2"], "log-opts": {"splunk-token": "hunter2"}}',
        '{"default-runtime": "https://user:hunter2@mirror", "runtimes": {"//u:hunter2@m": {"path": "/x"}}}',
    ],
)
def test_no_command_says_a_secret_of_the_file(tmp_path: Path, text: str, verb: str, form: str) -> None:
    tree(tmp_path, "etc/docker/daemon.json", text)
    done = run(verb, tmp_path, "--runtime", "docker", "--format", form)
    assert "hunter2" not in done.output


def test_the_diff_of_one_long_line_shows_the_change_behind_a_secret(tmp_path: Path) -> None:
    tree(tmp_path, "etc/docker/daemon.json", '{"labels":["token=hunter2"],"debug":true}')
    done = run("diff", tmp_path, "--runtime", "docker")
    assert '+{"labels":["token=********"],"debug":true,"runtimes":{"nvidia":' in done.output


def test_broken_files_are_named_with_line_and_column_and_stay(tmp_path: Path) -> None:
    broken = '{\n  "a": 1,,\n}\n'
    tree(tmp_path, "etc/docker/daemon.json", broken)
    for verb in ("configure", "unconfigure", "status", "diff"):
        done = run(verb, tmp_path, "--runtime", "docker")
        assert done.return_value == 2
        assert "/etc/docker/daemon.json:2:" in done.output
    assert contents(tmp_path) == {"etc/docker/daemon.json": broken.encode()}


def test_a_refusal_is_exit_code_5_in_text_and_json(tmp_path: Path) -> None:
    tree(tmp_path, "etc/docker/daemon.json", '{"runtimes": {"runc": {"path": "/x"}}}')
    assert run("configure", tmp_path, "--runtime", "docker").return_value == 5
    done = run("configure", tmp_path, "--runtime", "docker", "--format", "json")
    assert done.return_value == 5
    data = json.loads(done.output)
    assert "runc" in data["problems"][0]["what"]
    assert (data["changes"], data["outcome"]) == ([], None)


def test_a_directory_and_a_dangling_link_in_place_of_the_config_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "etc/docker/daemon.json").mkdir(parents=True)
    (tmp_path / "etc/containerd").mkdir()
    (tmp_path / "etc/containerd/config.toml").symlink_to("/nowhere")
    assert "is a directory" in run("configure", tmp_path, "--runtime", "docker").output
    done = run("configure", tmp_path, "--runtime", "containerd", "--engine-version", "1.7")
    assert done.return_value == 2
    assert "leads nowhere" in done.output


def test_links_of_a_tree_lead_to_places_in_the_tree(tmp_path: Path) -> None:
    file = tree(tmp_path, "srv/daemon.json", DOCKER)
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").symlink_to("/srv/daemon.json")
    assert run("configure", tmp_path, "--runtime", "docker").return_value == 0
    assert "nvidia" in file.read_text()
    assert (tmp_path / "etc/docker/daemon.json").is_symlink()


def test_links_in_a_circle_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").symlink_to("daemon.json")
    done = run("status", tmp_path, "--runtime", "docker")
    assert done.return_value == 2
    assert "circle" in done.output


def test_the_version_of_an_engine_in_a_tree_comes_from_dpkg(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: containerd\nStatus: install ok installed\nVersion: 1.6.20~ds1-1+b1\n\n"
        "Package: docker-ce\nStatus: install ok installed\nVersion: 5:28.5.2-1~debian.12~bookworm\n",
    )
    for engine, version in (("containerd", "1.6.20~ds1-1+b1"), ("docker", "28.5.2-1~debian.12~bookworm")):
        done = run("status", tmp_path, "--runtime", engine, "--format", "json")
        assert json.loads(done.output)["version"] == version


def test_a_file_that_changes_between_reading_and_writing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tree(tmp_path, "etc/docker/daemon.json", DOCKER)
    look, times = target.look, []

    def and_then_somebody_writes(host: runtimes.Engine) -> target.Subject[runtimes.Engine]:
        subject = look(host)
        times.append(1)
        if len(times) < 3:
            file.write_text(DOCKER + "\n" * len(times))
        return subject

    monkeypatch.setattr(target, "look", and_then_somebody_writes)
    assert run("configure", tmp_path, "--runtime", "docker").return_value == 0
    assert len(times) == 3
    assert "nvidia" in file.read_text()


def test_a_file_that_never_rests_is_refused_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tree(tmp_path, "etc/docker/daemon.json", DOCKER)
    look = target.look

    def and_then_somebody_writes(host: runtimes.Engine) -> target.Subject[runtimes.Engine]:
        subject = look(host)
        file.write_text(file.read_text() + "\n")
        return subject

    monkeypatch.setattr(target, "look", and_then_somebody_writes)
    done = run("configure", tmp_path, "--runtime", "docker")
    assert done.return_value == 5
    assert "changed since" in done.output
    assert file.read_text() == DOCKER + "\n" * 3


@pytest.mark.parametrize(
    ("engine", "config", "drop_in", "version"),
    [
        ("containerd", "own.toml", "conf.d/99-nvidia.toml", "2.1.9"),
        ("crio", "crio.conf", "crio.conf.d/99-nvidia.toml", "1.31"),
    ],
)
def test_a_config_of_ones_own_has_its_drop_in_next_to_it(
    tmp_path: Path, engine: str, config: str, drop_in: str, version: str
) -> None:
    (tmp_path / "srv").mkdir()
    args = ("--runtime", engine, "--config", f"/srv/{config}", "--engine-version", version)
    assert run("configure", tmp_path, *args).return_value == 0
    assert "nvidia" in (tmp_path / "srv" / drop_in).read_text()
    assert not (tmp_path / "etc").exists()
    assert run("unconfigure", tmp_path, *args).return_value == 0
    assert contents(tmp_path / "srv") == {}


# ---------------------------------------------------------------- options


@pytest.mark.parametrize("version", ["banana", "latest", "-1", "v"])
def test_a_version_without_numbers_is_bad_input(tmp_path: Path, version: str) -> None:
    done = run("configure", tmp_path, "--runtime", "docker", f"--engine-version={version}")
    assert (done.return_value, contents(tmp_path)) == (2, {})
    assert f"engine version '{version}'" in done.output


@pytest.mark.parametrize("option", ["--cdi.enabled", "--cdi.enable", "--enable-cdi"])
def test_options_of_nvidia_ctk_mean_what_they_mean_there(tmp_path: Path, option: str) -> None:
    args = ("--nvidia-runtime", "gpu", "--runtime-path", "/opt/nvidia-container-runtime")
    done = run("configure", tmp_path, "--runtime", "docker", "--engine-version", "28.1", option, *args)
    assert done.return_value == 0, done.output
    assert json.loads((tmp_path / "etc/docker/daemon.json").read_text()) == {
        "features": {"cdi": True},
        "runtimes": {"gpu": {"path": "/opt/nvidia-container-runtime", "runtimeArgs": []}},
    }


@pytest.mark.parametrize(
    "option", ["--executable-path", "--config-source", "--config-mode", "--nvidia-runtime-hook-path", "--oci-hook-path"]
)
def test_options_of_nvidia_ctk_without_a_meaning_say_what_to_do(tmp_path: Path, option: str) -> None:
    done = run("configure", tmp_path, "--runtime", "docker", option, "x")
    assert (done.return_value, contents(tmp_path)) == (2, {})
    assert f"{option} is an option of nvidia-ctk alone\n  do next:  " in done.output


def test_a_runtime_without_a_folder_is_looked_for_where_services_look(tmp_path: Path) -> None:
    tree(tmp_path, "usr/local/bin/nvidia-container-runtime", "")
    args = (
        "--runtime",
        "containerd",
        "--engine-version",
        "1.7.24",
        "--nvidia-runtime-path",
        "nvidia-container-runtime",
    )
    assert run("configure", tmp_path, *args).return_value == 0
    written = (tmp_path / "etc/containerd/config.toml").read_text()
    assert 'BinaryName = "/usr/local/bin/nvidia-container-runtime"' in written


def test_what_nvidia_ctk_writes_for_docker_is_configured(tmp_path: Path) -> None:
    text = '{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}\n'
    file = tree(tmp_path, "etc/docker/daemon.json", text)
    for args in ((), ("--nvidia-runtime-path", "nvidia-container-runtime")):
        assert run("status", tmp_path, "--runtime", "docker", *args).return_value == 0
        assert run("configure", tmp_path, "--runtime", "docker", *args).return_value == 0
    assert file.read_text() == text
    assert run("status", tmp_path, "--runtime", "docker", "--runtime-path", "/opt/x").return_value == 3


# ---------------------------------------------------------------- engines of this machine


def machine(monkeypatch: pytest.MonkeyPatch, root: Path, *names: str) -> None:
    """This machine has these engines, with files below `root`, and their daemons are said to be of release 1.7."""
    found = tuple(
        Runtime(
            name=name,  # type: ignore[arg-type]
            version="1.7.24" if name == "containerd" else "28.5.2",
            unit=f"{name}.service",
            config=str(root / f"{name}.conf"),
            binary="/bin/true",
        )
        for name in names
    )
    monkeypatch.setattr(runtimes, "probed", lambda root: NodeFacts(runtimes=found))


def on_this_machine(*args: str) -> Result:
    return CliRunner().invoke(cli, ["runtime", *args], standalone_mode=False)


def test_status_shows_each_engine_where_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, tmp_path, "docker", "containerd")
    done = on_this_machine("status")
    assert done.return_value == 3
    assert [line.split()[1] for line in done.output.splitlines() if line.startswith("engine")] == [
        "containerd",
        "docker",
    ]
    data = json.loads(on_this_machine("status", "--format", "json").output)
    assert [engine["runtime"] for engine in data["engines"]] == ["containerd", "docker"]
    assert on_this_machine("configure").return_value == 2, "which one to edit has to be said"
    assert on_this_machine("status", "--config", "/x").return_value == 2


def test_a_broken_file_of_one_engine_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, tmp_path, "docker", "containerd")
    (tmp_path / "containerd.conf").write_text("version = [\n")
    done = on_this_machine("status")
    assert done.return_value == 3
    assert "containerd.conf:2:1" in done.output
    assert "docker 28.5.2" in done.output
    data = json.loads(on_this_machine("status", "--format", "json").output)
    assert "containerd.conf:2:1" in data["engines"][0]["error"]


def test_a_config_that_the_daemon_does_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, tmp_path, "containerd")
    line = f"containerd.service reads {tmp_path}/containerd.conf, not this file: nothing is restarted"
    for verb in ("status", "configure", "unconfigure"):
        args = (
            verb,
            "--runtime",
            "containerd",
            "--config",
            f"{tmp_path}/confg.toml",
            *["--dry-run"] * (verb != "status"),
        )
        assert f"{tmp_path}/confg.toml: {line}" in on_this_machine(*args).output
    for config in (["--config", f"{tmp_path}/containerd.conf"], []):
        assert line not in on_this_machine("status", "--runtime", "containerd", *config).output


@pytest.mark.parametrize(
    ("version", "asked"), [("", True), ("1.7", True), ("1.7.3", True), ("1.6.20", False), ("2.1", False)]
)
def test_the_daemon_judges_files_of_its_own_release_without_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, asked: bool
) -> None:
    machine(monkeypatch, tmp_path, "containerd")
    subject = runtimes.look(runtimes.Options(runtime="containerd", version=version, restart=False))
    after = target.after(subject, target.edit(subject))
    assert (bool(after.validate), after.unit) == (asked, "")


@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        ("", []),
        ('{"v":1,"id":"1-files-1","phase":"intent"}\n{"v":1,"id":"1-files-1","phase":"done"}\n', []),
        ('{"v":1,"id":"1-files-1","phase":"intent"}\n', ["commit.sh"]),
        ("{damaged\n", ["commit.sh"]),
    ],
)
def test_a_transaction_starts_without_changes_only_where_one_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str, expected: list[str]
) -> None:
    tree(tmp_path, "etc/docker/daemon.json", DOCKER)
    assert run("configure", tmp_path, "--runtime", "docker").return_value == 0
    (tmp_path / "var/lib/gpunode/journal.jsonl").write_text(journal)
    scripts: list[str] = []
    unchanged = Outcome(status="unchanged", message="every file is as it should be")
    monkeypatch.setattr(target, "run", lambda name, _: scripts.append(name) or unchanged)
    done = run("configure", tmp_path, "--runtime", "docker")
    assert (done.output, scripts) == ("every file is as it should be\n", expected)


def test_an_unconfigure_that_leaves_a_persons_value_says_so_at_its_end(tmp_path: Path) -> None:
    words = '{"default-runtime": "%s", "runtimes": {"crun": {"path": "c"}, "nvidia": {"path": "n", "runtimeArgs": []}}}'
    words = words.replace('"n"', '"/usr/bin/nvidia-container-runtime"')
    file = tree(tmp_path, "etc/docker/daemon.json", words % "crun")
    assert run("configure", tmp_path, "--runtime", "docker", "--set-as-default").return_value == 0
    file.write_text(words % "runc")
    done = run("unconfigure", tmp_path, "--runtime", "docker")
    assert (done.return_value, file.read_text()) == (0, words % "runc")
    assert done.output.splitlines()[-2:] == [
        '/etc/docker/daemon.json: changed since: default-runtime is "runc", and was "crun" before gpunode',
        "nothing to undo: what others have set since stays",
    ]


@pytest.mark.slow
def test_twenty_at_once_all_write_what_they_were_asked_to(tmp_path: Path) -> None:
    """Each adds a runtime of its own to one file; who meets another one waits, and is not refused."""
    file = tree(tmp_path / "root", "etc/docker/daemon.json", DOCKER)
    command = [sys.executable, "-m", "gpunode", "runtime", "configure", "--root", str(tmp_path / "root")]
    command += ["--runtime", "docker", "--engine-version", "26.1.5", "--nvidia-runtime-name"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    writers = [
        subprocess.Popen(
            [*command, f"nvidia-{number}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
        )
        for number in range(20)
    ]
    printed = [one.communicate()[0].decode() for one in writers]
    assert [one.returncode for one in writers] == [0] * 20, printed
    assert set(json.loads(file.read_text())["runtimes"]) == {f"nvidia-{number}" for number in range(20)}


def test_an_engine_that_was_not_found_is_said_before_its_files_are_made() -> None:
    found = runtimes.find(runtimes.Options(runtime="docker", facts=NodeFacts()))
    assert [(note.what, note.why[:14]) for note in found.notes] == [("docker", "it was not fou")]
