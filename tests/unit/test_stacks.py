"""The fewest stacks for a fleet, and `gpunode solve --probe` that prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gpunode.cli.main import cli
from gpunode.core.solve import SolveRequest
from gpunode.core.solve.stacks import fleet_stacks, stacks_text
from gpunode.core.spec import DriverSpec
from gpunode.edge.load import load_knowledge

KNOWLEDGE = load_knowledge()


def ask(gpu: str, distro: str, **more: Any) -> SolveRequest:
    return SolveRequest(gpus=(gpu,), distro=distro, **more)


def test_a_fleet_gets_the_fewest_stacks_that_serve_it() -> None:
    fleet = {
        "pascal": ask("10de:15f8", "ubuntu:22.04"),
        "ampere1": ask("10de:20b5", "ubuntu:22.04"),
        "hopper": ask("10de:2330", "rocky:9.4"),
        "blackwell": ask("10de:2901", "debian:12"),
        "pinned": ask("10de:2330", "debian:12", driver=DriverSpec(branch="580")),
        "unknown": ask("10de:ffff", "debian:12"),
    }
    answer = fleet_stacks(fleet, KNOWLEDGE)
    assert [(s.branch, s.flavour, s.hosts) for s in answer.stacks] == [
        (580, "open", ("ampere1", "blackwell", "hopper", "pinned")),
        (580, "proprietary", ("pascal",)),
    ]
    assert answer.stacks[0].distros == ("debian:12", "rocky:9.4", "ubuntu:22.04")
    assert "not known" in answer.problems["unknown"][0].what


def test_what_is_installed_now_does_not_bind_a_fleet() -> None:
    fleet = {"a": ask("10de:2330", "debian:12", loaded_driver="580.95.05"), "b": ask("10de:2330", "debian:12")}
    assert [(s.branch, s.hosts) for s in fleet_stacks(fleet, KNOWLEDGE).stacks] == [(620, ("a", "b"))]


def test_solve_prints_the_stacks_of_saved_probes() -> None:
    probes = Path(__file__).parents[1] / "cases" / "probes"
    args = ["solve", "--probe", str(probes)]
    done = CliRunner().invoke(cli, args, standalone_mode=False)
    assert done.return_value == 5, done.output
    lines = done.output.splitlines()
    stacks = [line.split()[:3] for line in lines if line[:3].isdigit()]
    assert stacks == [["595", "open", "18"], ["615", "open", "2"], ["570", "open", "1"]]  # Arch has one branch alone
    assert "no stack              1  jetson-orin" in lines
    assert "no GPU                2  container-no-gpu, debian12-no-gpu" in lines
    assert lines[-1] == "3 stacks for 21 of 25 hosts with an NVIDIA GPU"
    data = json.loads(CliRunner().invoke(cli, [*args, "--format", "json"], standalone_mode=False).output)
    hosts = [*(h for stack in data["stacks"] for h in stack["hosts"]), *data["problems"], *data["without_gpu"]]
    assert sorted(hosts) == sorted(path.name for path in probes.iterdir())


def test_hosts_that_one_thing_stands_against_are_reported_once_and_ended_branches_are_named() -> None:
    fleet = {f"guest{n}": ask("10de:2330", "debian:12", virtualization="wsl") for n in range(6)}
    fleet["kepler"] = ask("10de:102d", "debian:12")
    lines = list(stacks_text(fleet_stacks(fleet, KNOWLEDGE)))
    assert lines[1] == "470 proprietary       1  debian:12"
    assert lines[4].strip() == "support of this branch has ended"
    assert lines[5] == "no stack              6  guest0, guest1, guest2, guest3 and 2 more"
    assert sum("this is WSL" in line for line in lines) == 1
    assert lines[-1] == "1 stack for 1 of 7 hosts with an NVIDIA GPU"


def test_a_folder_without_a_probe_is_reported(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["solve", "--probe", str(tmp_path)], standalone_mode=False)
    assert (done.return_value, "no probe in" in done.output) == (2, True)
