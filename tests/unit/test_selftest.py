"""The selftest: healthy machines of many kinds pass, and every check has a machine on which it fails."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from page import Reader, section
from rows import over
from selftest_machines import A100, H100, L4, PRO6000, RTX3090, VGPU, edited, json_edited, machine, swapped, without

from gpunode.cli.main import cli
from gpunode.core.errors import InputError
from gpunode.core.selftest.checks import CHECKS
from gpunode.core.selftest.readings import XML_FIELDS, compare, read_profiles, read_smi
from gpunode.core.selftest.record import (
    Capture,
    Result,
    SelftestRecord,
    archive_files,
    outcome_of,
    read_record,
    redacted,
    results_data,
    results_text,
)
from gpunode.edge.selftest import capture as capturing
from gpunode.edge.selftest import run
from gpunode.edge.selftest.capture import Clock, capture
from gpunode.edge.selftest.run import results_of
from tools.docs.pages import READMES, readme_text
from tools.docs.tables import with_tested_on

ROOT = Path(__file__).parents[2]
NODE = machine(*[H100] * 8)
CUT = machine(A100)
NO_SMI = ("nvidia-smi.xml", "nvidia-smi-list.txt", "mig-profiles.txt", "nvml.json")


def no_driver() -> SelftestRecord:
    def bare(text: str) -> str:
        lines = [
            line
            for line in text.splitlines()
            if not line.startswith(("| proc ", "| module nvidia", "| library ", "| fields ")) and "GPU-5a3c" not in line
        ]
        return "\n".join(lines).replace("driver=nvidia", "driver=-") + "\n"

    record = without(machine(L4), *NO_SMI, "cdi.yaml", "proc.txt")
    for name in ("probe.txt", "probe-dash.txt", "probe-bash.txt", "probe-busybox.txt"):
        record = edited(record, name, bare)
    record = edited(record, "sysfs.json", swapped('"driver": "nvidia"', '"driver": ""'))
    return edited(record, "lspci.txt", swapped("\tKernel driver in use: nvidia\n", ""))


def mismatch() -> SelftestRecord:
    why = "exit code 18: NVML library version: 580.105"
    record = without(machine(L4), *NO_SMI, "cdi.yaml", why=why)

    def other(text: str) -> str:
        kept = [line for line in text.splitlines() if "GPU-5a3c" not in line]
        at = next(n for n, line in enumerate(kept) if line.startswith("| fields "))
        printed = [
            "| Failed to initialize NVML: Driver/library version mismatch",
            "| NVML library version: 580.105",
            "| exit: 18",
        ]
        kept[at + 1 : at + 1] = printed
        return "\n".join(kept).replace("libnvidia-ml.so.580.95.05", "libnvidia-ml.so.580.105.08") + "\n"

    for name in ("probe.txt", "probe-dash.txt", "probe-bash.txt", "probe-busybox.txt"):
        record = edited(record, name, other)
    return record


def brought(line: str) -> SelftestRecord:
    """One whose driver is from no package: its probe says so in that line."""
    record = machine(L4)
    for name in ("probe.txt", "probe-dash.txt", "probe-bash.txt", "probe-busybox.txt"):
        record = edited(record, name, swapped("| module nvidia 580.95.05\n", f"| module nvidia 580.95.05\n| {line}\n"))
    return record


MACHINES: Mapping[str, SelftestRecord] = {
    "all H100": NODE,
    "A100 with MIG": CUT,
    "L4, proprietary modules": machine(L4, flavour="proprietary"),
    "two models": machine(RTX3090, L4),
    "vGPU guest": machine(VGPU),
    "a runfile's driver": brought("runfile 580.95.05"),
    "a driver of an image": brought("linked /usr/local/nvidia/lib64/libnvidia-ml.so.580.95.05"),
}


def failed(record: SelftestRecord) -> dict[str, Result]:
    return {result.id: result for result in results_of(record) if result.status == "failed"}


@over(MACHINES.items(), name=lambda row: row[0])
def test_a_healthy_machine_fails_no_check(name: str, record: SelftestRecord) -> None:
    assert {result.id: (result.message, result.details) for result in failed(record).values()} == {}


def test_nearly_every_check_says_something_about_a_node_of_h100() -> None:
    silent = {result.id: result.message for result in results_of(NODE) if result.status == "not possible"}
    assert set(silent) == {"facts.virtual", "knowledge.mig-profiles"}, silent
    others = {result.id for name in MACHINES for result in results_of(MACHINES[name]) if result.status == "passed"}
    assert others == {check.id for check in CHECKS}


@over([("no driver", no_driver), ("driver mismatch", mismatch)], name=lambda row: row[0])
def test_a_driver_that_does_not_work_is_one_failure_and_the_rest_is_not_possible(
    name: str, record: Callable[[], SelftestRecord]
) -> None:
    found = results_of(record())
    assert {result.id for result in found if result.status == "failed"} == {"driver.works"}
    possible = {result.id for result in found if result.status == "passed"}
    assert {"probe.shells", "facts.lspci", "facts.sysfs", "knowledge.pci-id"} <= possible
    assert not possible & {"facts.smi", "knowledge.branch"}


# ---------------------------------------------------------------- each check can fail


def broken_json(path: str, change: Callable[[Any], Any], base: SelftestRecord = NODE) -> SelftestRecord:
    return edited(base, path, json_edited(change))


def first_gpu(**values: Any) -> Callable[[Any], Any]:
    return lambda data: data["gpus"][0].update(values)


def stopped(name: str) -> SelftestRecord:
    return with_capture(name, Capture(text="half", error="stopped after 45 s", stopped=True, seconds=45))


def with_capture(name: str, one: Capture) -> SelftestRecord:
    return replace(NODE, captures={**NODE.captures, name: one})


def crashed(name: str) -> SelftestRecord:
    return edited(NODE, f"{name}.json", lambda text: f"error: unexpected KeyError: 'gpus'\n{text}")


def foreign(pci_id: str) -> SelftestRecord:
    """A node whose GPU nobody has in a table."""
    return machine(replace(L4, id=pci_id))


XID = "| [9.1] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n"

BROKEN: Mapping[str, Callable[[], SelftestRecord]] = {
    "probe.shells": lambda: edited(NODE, "probe-busybox.txt", swapped("kernel 6.1.0-41-amd64\n", "kernel 6.1\n")),
    "probe.readable": lambda: edited(NODE, "probe.txt", swapped(" 10de:2330 0302 ", " 10de-2330 0302 ")),
    "driver.works": mismatch,
    "captures.in-time": lambda: stopped("nvidia-smi-topo.txt"),
    "facts.smi": lambda: edited(NODE, "nvidia-smi.xml", swapped("<total>81559 MiB", "<total>81000 MiB")),
    "facts.nvml": lambda: broken_json("nvml.json", lambda data: data["gpus"].pop()),
    "smi.nvml": lambda: broken_json("nvml.json", first_gpu(power_limit_watts=500)),
    "facts.lspci": lambda: edited(NODE, "lspci.txt", swapped("[10de:2330]", "[10de:2331]")),
    "facts.sysfs": lambda: edited(NODE, "sysfs.json", swapped('"driver": "nvidia"', '"driver": "nouveau"')),
    "smi.sysfs": lambda: edited(NODE, "nvidia-smi.xml", swapped("16C110DE", "16C210DE")),
    "facts.proc": lambda: edited(NODE, "proc.txt", swapped("  580.95.05  ", "  580.95.06  ")),
    "smi.proc": lambda: edited(NODE, "proc.txt", swapped("Device Minor: \t 3", "Device Minor: \t 4")),
    "facts.virtual": lambda: machine(replace(VGPU, name="NVIDIA L4")),
    "facts.nvlink": lambda: broken_json("nvml.json", first_gpu(nvlink="101111111111111111")),
    "knowledge.pci-id": lambda: foreign("10de:fffe"),
    "knowledge.class": lambda: edited(NODE, "nvidia-smi.xml", swapped("brand>NVIDIA<", "brand>GeForce<")),
    "knowledge.architecture": lambda: edited(NODE, "nvidia-smi.xml", swapped(">Hopper<", ">Blackwell<")),
    "knowledge.compute-capability": lambda: broken_json("nvml.json", first_gpu(compute_capability="9.1")),
    "knowledge.mig-capability": lambda: edited(
        NODE, "nvidia-smi.xml", lambda text: text.replace(">Disabled</current_mig", ">N/A</current_mig")
    ),
    "knowledge.mig-profiles": lambda: edited(CUT, "mig-profiles.txt", swapped("2g.20gb ", "2g.21gb ")),
    "knowledge.open-module": lambda: machine(replace(L4, id="10de:2901", name="NVIDIA B200"), flavour="proprietary"),
    "knowledge.branch": lambda: machine(L4, driver="515.43.04"),
    "solver.accepts": lambda: machine(L4, driver="440.33.01", flavour="proprietary"),
    "command.detect": lambda: crashed("detect"),
    "command.plan": lambda: edited(NODE, "plan.json", lambda text: "Traceback (most recent call last):\n"),
    "command.verify": lambda: crashed("verify"),
    "command.doctor": lambda: edited(NODE, "doctor.json", lambda text: "no JSON"),
    "command.report": lambda: replace(
        NODE, captures={**NODE.captures, "report.json": Capture(text="error: none", exit=2)}
    ),
    "verify.alarms": lambda: broken_json(
        "verify.json", lambda data: data["hosts"][0]["checks"][4].update(status="failed", message="ECC errors")
    ),
    "doctor.alarms": lambda: broken_json(
        "doctor.json",
        lambda data: data["hosts"][0]["findings"].append(
            {"id": "nouveau-in-use", "root": True, "severity": "error", "layer": "driver", "evidence": ["dmesg:1: …"]}
        ),
    ),
    "smi.cdi": lambda: edited(NODE, "cdi.yaml", swapped(H100.uuid(0), "other")),
}


def test_every_check_has_a_machine_on_which_it_fails() -> None:
    assert set(BROKEN) == {check.id for check in CHECKS}


@over(BROKEN.items(), name=lambda row: row[0])
def test_a_check_fails_where_its_two_sides_differ(name: str, record: Callable[[], SelftestRecord]) -> None:
    found = failed(record())
    assert name in found, [*found]
    assert found[name].details, "what differs is shown"


def test_what_a_check_cannot_read_is_its_failure_and_no_end_of_the_others() -> None:
    record = edited(NODE, "nvidia-smi.xml", lambda text: text[:500])
    found = failed(record)
    assert "cannot be judged: nvidia-smi -q -x: " in found["facts.smi"].message
    assert "facts.nvml" not in found


# ---------------------------------------------------------------- readings


def test_each_field_of_the_xml_is_read_from_the_form_that_drivers_print() -> None:
    gpu = read_smi(NODE.text("nvidia-smi.xml")).gpus["0000:17:00.0"]
    absent = {"virtualization", "retired_pending", "temperature_slowdown"}
    assert set(XML_FIELDS) - set(gpu) == absent
    assert (gpu["pci_id"], gpu["memory_mib"], gpu["power_limit_watts"]) == ("10de:2330", "81559", "700")
    assert (gpu["ecc_uncorrected"], gpu["mig_devices"], gpu["processes"]) == ("0", "0", "0")


def test_a_workstation_gpu_says_nothing_of_mig_before_its_display_mode_is_compute() -> None:
    found = {r.id: r for r in results_of(machine(PRO6000))}
    assert found["knowledge.mig-capability"].status == "not possible"
    ready = {r.id: r for r in results_of(machine(replace(PRO6000, mig="Disabled")))}
    assert ready["knowledge.mig-capability"].status == "passed"
    server = {r.id: r for r in results_of(machine(replace(PRO6000, id="10de:2bb5")))}
    assert server["knowledge.mig-capability"].status == "failed"


@pytest.mark.parametrize("driver", ["384.111", "396.24", "410.104", "430.40"])
def test_a_branch_that_really_ran_is_known(driver: str) -> None:
    volta = replace(L4, id="10de:1db1", name="Tesla V100-SXM2-16GB", architecture="Volta", capability="7.0")
    found = {r.id: r for r in results_of(machine(volta, driver=driver, flavour="proprietary"))}
    assert found["knowledge.branch"].status == "passed", found["knowledge.branch"]


def test_an_xid_of_a_mig_instance_is_an_xid() -> None:
    line = "[9.1] NVRM: Xid (PCI:0000:17:00 GPU-I:05): 94, pid=7194, Contained: SM\n"
    record = edited(NODE, "dmesg.txt", lambda text: f"{text}{line}")
    assert "gpu.xid: NVML says" in " ".join(failed(record)["verify.alarms"].details)


def test_older_releases_have_some_fields_elsewhere() -> None:
    old = (
        '<?xml version="1.0" ?><nvidia_smi_log><driver_version>470.57</driver_version><gpu id="00000000:3B:00.0">'
        "<power_readings><enforced_power_limit>250.00 W</enforced_power_limit></power_readings>"
        "<retired_pages><pending_blacklist>No</pending_blacklist></retired_pages><temperature>"
        "<gpu_temp_slow_threshold>90 C</gpu_temp_slow_threshold></temperature><ecc_errors><volatile><double_bit>"
        "<total>3</total></double_bit></volatile></ecc_errors></gpu></nvidia_smi_log>"
    )
    gpu = read_smi(f"WARNING: infoROM is corrupted\n{old}").gpus["0000:3b:00.0"]
    assert gpu["power_limit_watts"] == "250" and gpu["retired_pending"] == "No"
    assert gpu["temperature_slowdown"] == "90" and gpu["ecc_uncorrected"] == "3"


@over(["", "No devices were found", '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "y">]><a/>', "<?xml <"])
def test_what_is_no_output_of_nvidia_smi_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_smi(text)


def test_a_row_of_mig_profiles_is_read_as_nvidia_smi_prints_it() -> None:
    text = "|   0  MIG 1g.5gb+me     20     0/1        4.75       No     14     1     0   |\n| 1 0 0 |\n"
    [row] = read_profiles(text)
    assert (row.gpu, row.name, row.id, row.most, row.gib) == (0, "1g.5gb+me", 20, 1, 4.75)


@pytest.mark.parametrize(("gib", "differs"), [("9.50", False), ("9.75", False), ("7.50", True), ("10.50", True)])
def test_memory_of_a_mig_profile_is_that_of_real_drivers_where_only_a_bound_is_known(gib: str, differs: bool) -> None:
    record = edited(CUT, "mig-profiles.txt", swapped("    8.80 ", f"    {gib} "))
    assert ("knowledge.mig-profiles" in failed(record)) == differs


def test_rounding_is_no_difference_and_a_gpu_that_only_one_source_has_is_one() -> None:
    one = replace(read_smi(NODE.text("nvidia-smi.xml")), source="one", machine={})
    other = replace(one, source="other", gpus={k: v for k, v in one.gpus.items() if k != "0000:17:00.0"})
    slot = "0000:1e:00.0"
    other = replace(other, gpus={**other.gpus, slot: {**other.gpus[slot], "memory_mib": "81560"}})
    assert compare(one, other)[1] == ["0000:17:00.0: one has this GPU, other does not"]
    assert compare(one, other, absent=["0000:17:00.0"])[1] == []


# ---------------------------------------------------------------- results and archive


def test_the_outcome_goes_by_the_worst_that_was_found() -> None:
    well = Result(id="a", status="passed", message="")
    bad = replace(well, status="failed")
    assert outcome_of([well], gpus=1) == "ok"
    assert outcome_of([well, bad], gpus=1) == "failed"
    assert outcome_of([well], gpus=0) == "refused"


def test_the_table_has_every_check_once_and_the_differences_below_it() -> None:
    results = results_of(BROKEN["facts.smi"]())
    text = results_text(results)
    assert sum(f" {check.id} " in text for check in CHECKS) == len(CHECKS)
    assert "0000:17:00.0 memory_mib: gpunode 81559, nvidia-smi -q -x 81000" in text
    data = results_data(NODE, results)
    assert (
        data["counts"]["failed"] == len([r for r in results if r.status == "failed"]) and data["counts"]["passed"] > 20
    )


SECRETS = (  # of the machine of `private`
    "GPU-5a3c0000",
    "1654523000001",
    "0x9ef6e8f645fd0000",
    "dvs-builder",
    "node-a01",
    "10.20.30.40",
    "secret-model",
    "hunter2",
    "0a:1b:2c:3d:4e:5f",
    "alice",
)


KERNEL_LINE = "node-a01 nvidia: 10.20.30.40 0a:1b:2c:3d:4e:5f /home/alice/x\n" + XID.replace(
    "fallen", "name=secret-model, fallen"
)


SECRET_FILE = b"node-a01 password: hunter2\n" * 4


def private() -> SelftestRecord:
    """A node whose outputs name it, its people and what runs there."""
    record = edited(
        NODE,
        "dmesg.txt",
        lambda text: (
            f"{text}node-a01 nvidia: 10.20.30.40 0a:1b:2c:3d:4e:5f /home/alice/x\n"
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder@)  \n"
        ),
    )
    record = edited(
        record, "doctor.json", lambda text: text.replace('"xids": []', '"xids": [], "note": "password: hunter2"')
    )
    data = {"data": base64.b64encode(SECRET_FILE).decode(), "also": base64.encodebytes(SECRET_FILE).decode()}
    record = edited(record, "detect.json", json_edited(lambda found: found.update(data)))
    process = "<processes><process_info><process_name>/usr/bin/secret-model</process_name></process_info></processes>"
    record = edited(record, "nvidia-smi.xml", swapped("<processes>\n\t\t</processes>", process))
    record = edited(record, "nvidia-smi.xml", swapped("<minor_number>", "<pdi>0x9ef6e8f645fd0000</pdi><minor_number>"))
    return edited(record, "nvml.json", swapped('"name"', '"pdi": "1654523000001", "name"'))


def test_the_archive_names_no_machine_and_no_person() -> None:
    record = private()
    raw = "".join(one.text for one in record.captures.values())
    assert [secret for secret in SECRETS if secret not in raw] == []
    files = archive_files(record, results_of(record))
    assert {secret: name for name, text in files.items() for secret in SECRETS if secret in text} == {}
    assert [name for name in files if name not in files["README.txt"] and name != "README.txt"] == []
    detected = json.loads(files["detect.json"])
    assert detected["data"] == "(146 characters left out)" and detected["also"].endswith("left out)")
    assert "10de:2330" in files["nvml.json"] and "580.95.05" in files["probe.txt"]


@over(MACHINES.items(), name=lambda row: row[0])
def test_a_redacted_record_is_judged_as_the_machine_was(name: str, record: SelftestRecord) -> None:
    again = read_record(redacted(record))
    assert [(r.id, r.status) for r in results_of(again)] == [(r.id, r.status) for r in results_of(record)]


@over([{}, {"record.json": "[]"}, {"record.json": '{"format": 2}'}, {"record.json": '{"format": 1}'}])
def test_what_is_no_record_is_refused(files: dict[str, str]) -> None:
    with pytest.raises(InputError):
        read_record(files)


# ---------------------------------------------------------------- the command


def gpunode(*words: str, **options: Any) -> Any:
    return CliRunner().invoke(cli, ["selftest", *words], standalone_mode=False, **options)


def test_a_written_archive_can_be_judged_again(tmp_path: Path) -> None:
    archive = tmp_path / "gpu.tar.gz"
    run.write_archive(archive, private())
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        tar.extractall(tmp_path)
    assert names[:3] == ["gpu/README.txt", "gpu/results.txt", "gpu/results.json"]
    from_file = gpunode("--from", str(archive), "--format", "json")
    from_folder = gpunode("--from", str(tmp_path / "gpu"), "--format", "json")
    assert from_file.return_value == from_folder.return_value == 0, from_file.output
    assert json.loads(from_file.stdout) == json.loads(from_folder.stdout)
    assert json.loads(from_file.stdout)["counts"] == {"passed": 29, "failed": 0, "not_possible": 2}
    with pytest.raises(InputError, match="cannot write"):
        run.write_archive(archive, NODE)


def test_the_exit_code_says_what_was_found(tmp_path: Path) -> None:
    run.write_archive(tmp_path / "bad.tar.gz", BROKEN["facts.smi"]())
    assert gpunode("--from", str(tmp_path / "bad.tar.gz")).return_value == 1
    (tmp_path / "no").mkdir()
    assert isinstance(gpunode("--from", str(tmp_path / "no")).exception, InputError | None)


def test_the_list_of_checks_is_shown() -> None:
    shown = gpunode("--list").stdout
    assert [check.id for check in CHECKS if f"{check.id} " not in shown] == []
    data = json.loads(gpunode("--list", "--format", "json").stdout)
    assert [row["id"] for row in data["checks"]] == [check.id for check in CHECKS]


def test_without_a_gpu_there_is_one_paragraph_and_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pci := tmp_path / "pci").mkdir()
    monkeypatch.setattr(run, "PCI", pci)
    monkeypatch.setattr(run, "examine", lambda *_, **__: pytest.fail("there is nothing to look at"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(capturing, "SYSTEM_PATH", ())
    monkeypatch.chdir(tmp_path)
    done = gpunode()
    assert done.return_value == 5 and done.stdout.startswith("no NVIDIA GPU here")
    assert done.stdout.count("\n") <= 5 and f"{len(CHECKS)} checks" in done.stdout
    data = json.loads(gpunode("--format", "json").stdout)
    assert data["archive"] is None and data["checks"] == [] and "no NVIDIA GPU" in data["reason"]
    assert list(tmp_path.iterdir()) == [pci]

    (smi := tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\n")
    smi.chmod(0o755)
    assert run.gpu_here(Clock(10)), "a GPU that only the driver knows is what a selftest is for"
    smi.unlink()
    for name, text in {"vendor": "0x10de\n", "class": "0x030200\n"}.items():
        (pci / "0000:17:00.0").mkdir(exist_ok=True)
        (pci / "0000:17:00.0" / name).write_text(text)
    assert run.gpu_here(Clock(10))


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    run.write_archive(tmp_path / "record.tar.gz", NODE)
    program = tmp_path / "bin/gpunode"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpunode "$@"\n')
    program.chmod(0o755)
    page = section((ROOT / "docs/selftest.md").read_text(), "What it prints")
    reader = Reader(tmp_path, {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}, timeout=60)
    assert reader.follow(page) == 2
    reader.close()


def test_the_readme_lists_what_the_records_say() -> None:
    for name in READMES:
        assert readme_text(ROOT, name) == (ROOT / name).read_text(), "make docs"
    text, head = readme_text(ROOT), READMES["README.md"]
    assert (
        "| 1× NVIDIA H100 80GB HBM3 | 580.159.04 open | ubuntu:24.04 x86_64, a virtual machine | 2026-11-27 |" in text
    )
    listed = with_tested_on(text, head, {"one": (NODE, results_of(NODE))})
    assert (
        "| 8× NVIDIA H100 80GB HBM3 | 580.95.05 open | debian:12 x86_64 | 2026-11-23 | 29 passed, none failed, "
        "2 not possible |" in listed
    )
    bad = BROKEN["facts.smi"]()
    assert "2 failed: facts.smi, smi.nvml, " in with_tested_on(text, head, {"one": (bad, results_of(bad))})


def test_every_kept_record_is_judged_as_when_it_was_sent() -> None:
    for file in ROOT.glob("tests/cases/selftest/*/results.json"):
        then = {row["id"]: row["status"] for row in json.loads(file.read_text())["checks"]}
        now = {result.id: result.status for result in results_of(run.load_record(file.parent))}
        assert {name: status for name, status in now.items() if then.get(name) == "passed" != status} == {}, file


def test_nothing_is_left_to_redact_in_a_kept_record() -> None:
    for folder in (ROOT / "tests/cases/selftest").iterdir():
        again = archive_files(run.load_record(folder), ())
        made = {name: text for name, text in again.items() if not name.startswith("results.")}
        assert [name for name, text in made.items() if text != (folder / name).read_text()] == [], folder


def test_an_archive_has_once_what_shells_printed_alike_and_is_refused_where_that_was_changed() -> None:
    other = edited(NODE, "probe-dash.txt", swapped("kernel 6.1.0-41-amd64\n", "kernel 6.1\n"))
    for record, kept in ((NODE, ["probe.txt"]), (other, ["probe.txt", "probe-dash.txt"])):
        files = archive_files(record, results_of(record))
        assert sorted(name for name in files if name.startswith("probe")) == sorted(kept)
        assert results_of(read_record(files)) == results_of(record)
        with pytest.raises(InputError, match="no record of a selftest"):
            read_record(files | {"probe.txt": files["probe.txt"] + "\n"})


def test_the_issue_template_asks_for_what_the_archive_is() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/gpu-record.yml").read_text())
    assert [one["id"] for one in form["body"] if "id" in one] == [
        "result",
        "hardware",
        "table",
        "archive",
        "differences",
    ]
    reported = form["body"][0]["attributes"]["value"]
    assert all(word in reported for word in ("serial numbers", "UUIDs", "host and user names", "IP and MAC addresses"))


# ---------------------------------------------------------------- captures on this machine


def test_a_program_that_hangs_is_stopped_with_what_it_started() -> None:
    done = capture(["sh", "-c", "echo begun; sleep 60 & wait"], Clock(60), 0.3)
    assert (done.stopped, done.text, done.exit) == (True, "begun\n", None)
    assert capture(["sh", "-c", "exit 0"], Clock(0), 5).stopped


def test_a_program_that_fails_says_why_and_one_that_is_not_there_too() -> None:
    done = capture(["sh", "-c", "echo no device; exit 9"], Clock(60), 5)
    assert (done.exit, done.error) == (9, "exit code 9: no device")
    assert capturing.only_if_good(done).text == ""
    assert capture(["no-such-program-here"], Clock(60), 5).error == "no-such-program-here is not on this machine"
