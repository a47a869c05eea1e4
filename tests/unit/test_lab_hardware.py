"""The faked hardware: what lspci, the probe and the stand-ins read of it."""

from pathlib import Path

import pytest

from gpunode.core.errors import InputError
from gpunode.lab.hardware import parse_gpus, write_hardware


def device(lab: Path, slot: str) -> dict[str, str]:
    folder = lab / "sys/bus/pci/devices" / slot
    return {name: (folder / name).read_text().strip() for name in ("vendor", "device", "class", "subsystem_vendor")}


def test_a_data_centre_gpu_is_a_3d_controller_and_a_graphics_card_a_vga_one(tmp_path):
    write_hardware(tmp_path, ["h100", "rtx3090"], nouveau=False)
    assert device(tmp_path, "0000:17:00.0") == {
        "vendor": "0x10de",
        "device": "0x2330",
        "class": "0x030200",
        "subsystem_vendor": "0x10de",
    }
    assert device(tmp_path, "0000:1e:00.0")["class"] == "0x030000"


def test_the_configuration_space_agrees_with_the_files(tmp_path):
    write_hardware(tmp_path, ["10de:2204"], nouveau=False)
    config = (tmp_path / "sys/bus/pci/devices/0000:17:00.0/config").read_bytes()
    assert len(config) == 256
    assert config[:4] == bytes.fromhex("de100422")
    assert config[0x0A:0x0C] == bytes([0x00, 0x03])
    assert config[0x06] & 0x10 == 0x10 and config[0x34] == 0  # a capability list, and it is empty


def test_an_unknown_id_is_an_unnamed_3d_controller_unless_its_class_is_given():
    found = [(gpu.name, gpu.class_code) for gpu in parse_gpus(["10de:2236", " 10DE:abcd", "None", "10de:abcd:0300"])]
    assert found[:2] == [("NVIDIA A10", 0x0302), ("NVIDIA Device ABCD", 0x0302)]
    assert [code for _, code in found[2:]] == [0x0300]


def test_an_hgx_board_has_eight_gpus_and_four_switches_that_are_no_gpus(tmp_path):
    write_hardware(tmp_path, ["hgx-h100"], nouveau=False)
    classes = [device(tmp_path, path.name)["class"] for path in (tmp_path / "sys/bus/pci/devices").iterdir()]
    assert sorted(classes) == ["0x030200"] * 8 + ["0x068000"] * 4
    assert len((tmp_path / "standin-gpus").read_text().splitlines()) == 8


def test_the_table_says_which_modules_drive_a_gpu(tmp_path):
    write_hardware(tmp_path, ["b200", "p40", "l4"], nouveau=False)
    flavours = [line.split("\t")[7] for line in (tmp_path / "standin-gpus").read_text().splitlines()]
    assert flavours == ["open", "proprietary", "open,proprietary"]


@pytest.mark.parametrize(
    ("gpus", "nouveau", "modules"),
    [(["none"], False, ""), (["h100"], False, "nvidia\n"), (["h100"], True, "nouveau\nnvidia\n")],
)
def test_the_modules_that_udev_would_load_follow_the_hardware(tmp_path, gpus, nouveau, modules):
    write_hardware(tmp_path, gpus, nouveau=nouveau)
    assert (tmp_path / "autoload").read_text() == modules


@pytest.mark.parametrize("word", ["h1000", "8086:1234", "10de:23300", ""])
def test_a_word_that_names_no_gpu_is_refused_with_those_that_do(word):
    with pytest.raises(InputError) as refused:
        parse_gpus([word])
    assert "h100" in refused.value.expected


def test_a_gpu_with_mig_has_a_line_for_each_of_its_profiles_and_others_have_none(tmp_path):
    write_hardware(tmp_path, ["t4", "a100"], nouveau=False)
    rows = [line.split("\t") for line in (tmp_path / "standin-mig").read_text().splitlines()]
    assert {len(row) for row in rows} == {12}
    assert {(row[0], row[1]) for row in rows} == {("0000:1e:00.0", "kept")}
    assert rows[4][2:] == ["3g.40gb", "9", "3", "4", "0 4", "0", "0", "2", "35.20", "7 8 0 1"]


def test_gpus_of_two_nodes_have_uuids_of_their_own(tmp_path: Path) -> None:
    tables = []
    for name in ("lab-1", "lab-2"):
        (tmp_path / name).mkdir()
        write_hardware(tmp_path / name, ["h100", "h100"], nouveau=False, node=name)
        tables += (tmp_path / name / "standin-gpus").read_text().splitlines()
    assert len({row.split("\t")[2] for row in tables}) == 4
