"""Records of machines as a selftest captures them: outputs in the form that the real programs have.

The XML follows nvsmi_device_v12.dtd as driver 555 and later print it, with the sections in their order.  No physical
machine stands behind them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gpunode.core.selftest.record import Capture, SelftestRecord
from gpunode.edge.load import load_mig

PROBE = (Path(__file__).parents[1] / "cases/probes/debian12-h100-provisioned/probe.txt").read_text()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, in nvidia-smi's words."""

    slot: str
    id: str
    name: str
    brand: str
    architecture: str
    capability: str
    memory: int
    watts: int
    clock: int
    subsystem: str = "10de:16c1"
    class_code: str = "0302"
    mig: str = "N/A"
    ecc: str = "Enabled"
    fabric: str = "N/A"
    virtualization: str = "None"
    mig_devices: int = 0
    nvlinks: int = 0

    def uuid(self, index: int) -> str:
        return f"GPU-5a3c0000-1f2e-4d3c-8b7a-{index:012x}"


H100 = Gpu(
    slot="", id="10de:2330", name="NVIDIA H100 80GB HBM3", brand="NVIDIA", architecture="Hopper", capability="9.0",
    memory=81559, watts=700, clock=1980, mig="Disabled", fabric="Completed", nvlinks=18,
)  # fmt: skip
A100 = Gpu(
    slot="", id="10de:20b2", name="NVIDIA A100-SXM4-80GB", brand="NVIDIA", architecture="Ampere", capability="8.0",
    memory=81920, watts=400, clock=1410, mig="Enabled", subsystem="10de:1463", mig_devices=2,
)  # fmt: skip
L4 = Gpu(
    slot="", id="10de:27b8", name="NVIDIA L4", brand="NVIDIA", architecture="Ada Lovelace", capability="8.9",
    memory=23034, watts=72, clock=2040, subsystem="10de:16ca",
)  # fmt: skip
RTX3090 = Gpu(
    slot="", id="10de:2204", name="NVIDIA GeForce RTX 3090", brand="GeForce", architecture="Ampere", capability="8.6",
    memory=24576, watts=350, clock=2100, subsystem="1043:87d5", class_code="0300", ecc="N/A",
)  # fmt: skip
PRO6000 = Gpu(
    slot="", id="10de:2bb4", name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", brand="NVIDIA RTX",
    architecture="Blackwell", capability="12.0", memory=97887, watts=300, clock=3090, subsystem="10de:204b",
    class_code="0300",
)  # fmt: skip
VGPU = replace(
    L4, name="NVIDIA L4-12Q", memory=12288, virtualization="VGPU", ecc="N/A", brand="NVIDIA RTX Virtual Workstation"
)


def placed(*gpus: Gpu) -> tuple[Gpu, ...]:
    """The GPUs on one bus each."""
    return tuple(replace(gpu, slot=f"0000:{0x17 + 7 * n:02x}:00.0") for n, gpu in enumerate(gpus))


def machine(*models: Gpu, driver: str = "580.95.05", flavour: str = "open", virtual: bool = False) -> SelftestRecord:
    """The record of a healthy machine with these GPUs, every part of a selftest included."""
    gpus = placed(*models)
    texts = {
        "probe.txt": probe(gpus, driver, flavour, virtual=virtual),
        "nvidia-smi.xml": smi_xml(gpus, driver),
        "nvidia-smi-list.txt": smi_list(gpus),
        "mig-profiles.txt": mig_profiles(gpus),
        "nvml.json": json.dumps(nvml(gpus, driver)),
        "sysfs.json": json.dumps({gpu.slot: sysfs(gpu) for gpu in gpus}),
        "lspci.txt": "".join(map(lspci, gpus)),
        "proc.txt": proc(gpus, driver, flavour),
        "cdi.yaml": cdi(gpus, driver),
        "detect.json": json.dumps({"hosts": []}),
        "plan.json": json.dumps({"hosts": []}),
        "verify.json": json.dumps({"hosts": [{"host": "localhost", "checks": [*verify_checks()]}]}),
        "doctor.json": json.dumps({"hosts": [{"host": "localhost", "findings": [], "xids": []}]}),
        "report.json": json.dumps({"hosts": []}),
        "dmesg.txt": "[    3.1] nvidia: loading out-of-tree module taints kernel.\n",
    }
    texts |= {f"probe-{shell}.txt": texts["probe.txt"] for shell in ("dash", "bash", "busybox")}
    codes = {"plan.json": 3, "verify.json": 3}
    captures = {name: Capture(text=text, exit=codes.get(name, 0), seconds=0.5) for name, text in texts.items()}
    return SelftestRecord(captures=captures, gpunode="0.1.0", at="2026-11-23T10:00:00Z", root=True, seconds=90.0)


def without(record: SelftestRecord, *names: str, why: str = "nvidia-smi is not on this machine") -> SelftestRecord:
    """The record of a machine that lacks what these captures come from."""
    return replace(record, captures={**record.captures, **dict.fromkeys(names, Capture(error=why))})


def edited(record: SelftestRecord, name: str, edit: Callable[[str], str]) -> SelftestRecord:
    """The record with one capture changed; fails where the edit changes nothing."""
    old = record.captures[name]
    text = edit(old.text)
    assert text != old.text, f"nothing changed in {name}"
    return replace(record, captures={**record.captures, name: replace(old, text=text)})


def swapped(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


def json_edited(change: Callable[[Any], Any]) -> Callable[[str], str]:
    """An edit of a JSON text: `change` works on the data in place."""

    def edit(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return edit


# ---------------------------------------------------------------- the programs


def probe(gpus: Sequence[Gpu], driver: str, flavour: str, *, virtual: bool) -> str:
    """The probe of a provisioned Debian 12 with these GPUs."""
    kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    rows = {
        "pci": [
            f"{g.slot} {g.id} {g.class_code} subsystem={g.subsystem} driver=nvidia vf={'yes' if virtual else 'no'}"
            for g in gpus
        ],
        "lspci": [lspci(g).partition("\n")[0] for g in gpus],
        "driver": [
            f"proc NVRM version: NVIDIA UNIX {kind}  {driver}  Release Build  (dvs-builder@U22-I3-AM36-05-3)",
            f"module nvidia {driver}",
            f"library /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{driver}",
        ],
        "nvidia_smi": [
            "fields index,uuid,name,pci.bus_id,driver_version,memory.total,mig.mode.current,mig.mode.pending,"
            "persistence_mode,ecc.mode.current,ecc.errors.uncorrected.volatile.total,retired_pages.pending,"
            "remapped_rows.pending,remapped_rows.failure,fabric.state",
            *(
                f"{n}, {g.uuid(n)}, {g.name}, 0000{g.slot.upper()}, {driver}, {g.memory}, {na(g.mig)}, {na(g.mig)}, "
                f"Enabled, {na(g.ecc)}, {'0' if g.ecc == 'Enabled' else '[N/A]'}, [N/A], "
                f"{remapped(g)}, {remapped(g)}, {na(g.fabric)}"
                for n, g in enumerate(gpus)
            ),
        ],
        "nvlink": nvlink_status(gpus),
    }
    text = PROBE.replace("580.95.05", driver)
    for name, lines in rows.items():
        body = "".join(f"| {line}\n" for line in lines)
        text, times = re.subn(rf"(?m)^#: {name}\n(?:[|!] ?.*\n)*", lambda _, n=name, b=body: f"#: {n}\n{b}", text)
        assert times == 1, name
    return text


def na(value: str) -> str:
    return "[N/A]" if value == "N/A" else value


def remapped(gpu: Gpu) -> str:
    return "No" if gpu.ecc == "Enabled" else "[N/A]"


def nvlink_status(gpus: Sequence[Gpu]) -> list[str]:
    lines = []
    for n, gpu in enumerate(gpus):
        lines.append(f"GPU {n}: {gpu.name} (UUID: {gpu.uuid(n)})")
        lines += [f"\t Link {link}: 26.562 GB/s" for link in range(gpu.nvlinks)]
    return lines if any(gpu.nvlinks for gpu in gpus) else []


def smi_xml(gpus: Sequence[Gpu], driver: str) -> str:
    body = "".join(gpu_xml(gpu, n, driver) for n, gpu in enumerate(gpus))
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"\t<timestamp>Mon Nov 23 10:00:00 2026</timestamp>\n\t<driver_version>{driver}</driver_version>\n"
        f"\t<cuda_version>13.0</cuda_version>\n\t<attached_gpus>{len(gpus)}</attached_gpus>\n{body}</nvidia_smi_log>\n"
    )


def tagged(path: str, value: object) -> str:
    """a/b, 1 → <a><b>1</b></a>."""
    tags = path.split("/")
    return "".join(f"<{tag}>" for tag in tags) + str(value) + "".join(f"</{tag}>" for tag in reversed(tags))


def gpu_xml(gpu: Gpu, index: int, driver: str) -> str:
    pci_id, subsystem = ("".join(reversed(one.upper().split(":"))) for one in (gpu.id, gpu.subsystem))
    devices = "".join(
        f"<mig_device><index>{n}</index><gpu_instance_id>{n + 1}</gpu_instance_id></mig_device>"
        for n in range(gpu.mig_devices)
    )
    count = "0" if gpu.ecc == "Enabled" else "N/A"
    rows = [
        tagged("product_name", gpu.name),
        tagged("product_brand", gpu.brand),
        tagged("product_architecture", gpu.architecture),
        tagged("persistence_mode", "Enabled"),
        f"<mig_mode>{tagged('current_mig', gpu.mig)}{tagged('pending_mig', gpu.mig)}</mig_mode>",
        f"<mig_devices>{devices or 'None'}</mig_devices>",
        tagged("serial", f"16545230{index:05d}"),
        tagged("uuid", gpu.uuid(index)),
        tagged("minor_number", index),
        tagged("vbios_version", "96.00.5E.00.01"),
        tagged("gpu_virtualization_mode/virtualization_mode", gpu.virtualization),
        tagged("gsp_firmware_version", driver),
        f"<pci>{tagged('pci_device_id', pci_id)}{tagged('pci_bus_id', f'0000{gpu.slot.upper()}')}"
        f"{tagged('pci_sub_system_id', subsystem)}"
        f"<pci_gpu_link_info>{tagged('pcie_gen/max_link_gen', 5)}{tagged('link_widths/max_link_width', '16x')}"
        "</pci_gpu_link_info></pci>",
        tagged("fb_memory_usage/total", f"{gpu.memory} MiB"),
        tagged("bar1_memory_usage/total", "131072 MiB"),
        tagged("compute_mode", "Default"),
        f"<ecc_mode>{tagged('current_ecc', gpu.ecc)}{tagged('pending_ecc', gpu.ecc)}</ecc_mode>",
        f"<ecc_errors><volatile>{tagged('sram_correctable', count)}{tagged('sram_uncorrectable_parity', count)}"
        f"{tagged('sram_uncorrectable_secded', count)}{tagged('dram_uncorrectable', count)}</volatile></ecc_errors>",
        tagged("retired_pages/pending_retirement", "N/A"),
        f"<remapped_rows>{tagged('remapped_row_corr', count)}{tagged('remapped_row_unc', count)}"
        f"{tagged('remapped_row_pending', remapped(gpu).strip('[]'))}"
        f"{tagged('remapped_row_failure', remapped(gpu).strip('[]'))}</remapped_rows>",
        f"<temperature>{tagged('gpu_temp', '31 C')}{tagged('gpu_temp_tlimit', '56 C')}"
        f"{tagged('gpu_temp_slow_tlimit_threshold', '-2 C')}</temperature>",
        f"<gpu_power_readings>{tagged('power_draw', '70.12 W')}{tagged('current_power_limit', f'{gpu.watts}.00 W')}"
        f"{tagged('default_power_limit', f'{gpu.watts}.00 W')}{tagged('min_power_limit', '100.00 W')}"
        f"{tagged('max_power_limit', f'{gpu.watts}.00 W')}</gpu_power_readings>",
        f"<max_clocks>{tagged('graphics_clock', f'{gpu.clock} MHz')}{tagged('sm_clock', f'{gpu.clock} MHz')}"
        f"{tagged('mem_clock', '2619 MHz')}</max_clocks>",
        f"<fabric>{tagged('state', gpu.fabric)}{tagged('status', 'N/A')}</fabric>",
        "<processes>\n\t\t</processes>",
    ]
    inside = "".join(f"\t\t{row}\n" for row in rows)
    return f'\t<gpu id="0000{gpu.slot.upper()}">\n{inside}\t</gpu>\n'


def mig_uuids(gpu: Gpu, index: int) -> list[str]:
    return [f"MIG-7b1e0000-0000-5000-8000-{index:06x}{n:06x}" for n in range(gpu.mig_devices)]


def smi_list(gpus: Sequence[Gpu]) -> str:
    lines = []
    for n, gpu in enumerate(gpus):
        lines.append(f"GPU {n}: {gpu.name} (UUID: {gpu.uuid(n)})")
        lines += [f"  MIG 1g.10gb     Device  {i}: (UUID: {u})" for i, u in enumerate(mig_uuids(gpu, n))]
    return "".join(f"{line}\n" for line in lines)


def mig_profiles(gpus: Sequence[Gpu]) -> str:
    """`nvidia-smi mig -lgip`, the profiles of the published table."""
    rule = f"+{'-' * 77}+\n"
    rows = [
        f"| {n:3}  MIG {p.name:<15}{max(p.id, 0):3}{p.most:6}/{p.most:<6}{p.usable_gib:8.2f}       No"
        f"{p.compute * 16:7}     0     0   |\n| {p.compute:60}     0     0   |\n{rule}"
        for n, gpu in enumerate(gpus)
        if gpu.mig == "Enabled"
        for p in next(one for one in load_mig() if gpu.id in one.ids).profiles
        if p.since <= 580
    ]
    return f"{rule}| GPU instance profiles:{' ' * 54}|\n{''.join(rows)}" if rows else "No MIG-enabled devices found.\n"


def nvml(gpus: Sequence[Gpu], driver: str) -> dict[str, Any]:
    return {
        "machine": {"driver": driver, "cuda": "13.0", "gpus": len(gpus)},
        "gpus": [nvml_gpu(gpu, n, driver) for n, gpu in enumerate(gpus)],
    }


def nvml_gpu(gpu: Gpu, index: int, driver: str) -> dict[str, Any]:
    printed: dict[str, Any] = {
        "slot": f"0000{gpu.slot.upper()}",
        "pci_id": gpu.id,
        "subsystem": gpu.subsystem,
        "name": gpu.name,
        "uuid": gpu.uuid(index),
        "serial": f"16545230{index:05d}",
        "minor": index,
        "vbios": "96.00.5E.00.01",
        "firmware": driver,
        "memory_mib": gpu.memory,
        "bar1_mib": 131072,
        "persistence": "Enabled",
        "compute_mode": "Default",
        "compute_capability": gpu.capability,
        "power_limit_watts": gpu.watts,
        "power_default_watts": gpu.watts,
        "power_min_watts": 100,
        "power_max_watts": gpu.watts,
        "clock_sm_max_mhz": gpu.clock,
        "clock_memory_max_mhz": 2619,
        "clock_graphics_max_mhz": gpu.clock,
        "temperature_slowdown": 90,
        "compute_processes": 0,
        "link_generation_max": 5,
        "link_width_max": 16,
    }
    if gpu.mig != "N/A":
        printed |= {"mig_current": gpu.mig, "mig_pending": gpu.mig}
    if gpu.ecc != "N/A":
        printed |= {"ecc_current": gpu.ecc, "ecc_pending": gpu.ecc, "ecc_uncorrected": 0, "remapped_correctable": 0}
        printed |= {"remapped_uncorrectable": 0, "remap_pending": "No", "remap_failure": "No"}
    if gpu.fabric != "N/A":
        printed["fabric_state"] = gpu.fabric
    if gpu.virtualization != "None":
        printed["virtualization"] = gpu.virtualization
    return printed | ({"nvlink": "1" * gpu.nvlinks} if gpu.nvlinks else {})


def sysfs(gpu: Gpu) -> dict[str, str]:
    vendor, device = (f"0x{part}" for part in gpu.id.split(":"))
    sub_vendor, sub_device = (f"0x{part}" for part in gpu.subsystem.split(":"))
    return {
        "vendor": vendor,
        "device": device,
        "class": f"0x{gpu.class_code}00",
        "subsystem_vendor": sub_vendor,
        "subsystem_device": sub_device,
        "numa_node": "0",
        "driver": "nvidia",
    }


def lspci(gpu: Gpu) -> str:
    kind = "3D controller" if gpu.class_code == "0302" else "VGA compatible controller"
    return (
        f"{gpu.slot} {kind} [{gpu.class_code}]: NVIDIA Corporation GH100 [{gpu.name}] [{gpu.id}] (rev a1)\n"
        f"\tSubsystem: NVIDIA Corporation Device [{gpu.subsystem}]\n\tKernel driver in use: nvidia\n"
        "\tKernel modules: nvidia\n"
    )


def proc(gpus: Sequence[Gpu], driver: str, flavour: str) -> str:
    kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    text = (
        f"=== /proc/driver/nvidia/version\nNVRM version: NVIDIA UNIX {kind}  {driver}  Release Build  (root@node-a01)\n"
    )
    for n, gpu in enumerate(gpus):
        text += (
            f"=== /proc/driver/nvidia/gpus/{gpu.slot}/information\nModel: \t\t {gpu.name}\nIRQ:   \t\t 129\n"
            f"GPU UUID: \t {gpu.uuid(n)}\nVideo BIOS: \t 96.00.5e.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"Bus Location: \t {gpu.slot}\nDevice Minor: \t {n}\nGPU Firmware: \t {driver}\nGPU Excluded:\t No\n"
        )
    return text


def cdi(gpus: Sequence[Gpu], driver: str) -> str:
    names = [(str(n), gpu.uuid(n), n) for n, gpu in enumerate(gpus) if not gpu.mig_devices]
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{driver}"
    data = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{n}"}]}}
            for index, uuid, n in names
            for name in (index, uuid)
        ],
        "containerEdits": {"mounts": [{"containerPath": library, "hostPath": library, "options": ["ro", "bind"]}]},
    }
    return yaml.safe_dump(data)


def verify_checks() -> list[dict[str, str]]:
    ids = ("driver.loaded", "driver.versions-match", "gpu.count", "gpu.remap-pending", "gpu.ecc", "gpu.xid")
    return [{"id": name, "status": "passed", "message": "well", "fix": ""} for name in ids]
