"""Emulated nodes: what is registered with the kernel, what is refused, and what is left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpunode.core.errors import InputError, RefusedError
from gpunode.lab import emulation, images, machine, packages, packages_vendor, sources
from gpunode.lab.images import Variant
from gpunode.lab.packages import RepositoryInfo, RepositorySource

RULE = r":qemu-aarch64:M::\x7fELF:\xff\xff:/usr/libexec/qemu-binfmt/aarch64-binfmt-P:OPF" + "\n"
OURS = r":gpunode-lab-aarch64-SUFFIX:M::\x7fELF:\xff\xff:/usr/libexec/qemu-binfmt/aarch64-binfmt-P:OPFC"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the emulator's rule; mount and umount make a folder of it that is as binfmt_misc, and end it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rule").write_text(RULE)
    monkeypatch.setattr(emulation, "RULE", tmp_path / "rule")
    folder = machine.places().state / "binfmt_misc"
    mounted: set[Path] = set()

    def run(*command: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        if command[0] == "mount":
            mounted.add(folder)
        else:
            mounted.remove(folder)
            for file in folder.iterdir():
                file.unlink()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)
    return folder


def written(folder: Path) -> str:
    return (folder / "register").read_text().replace(machine.places().suffix, "-SUFFIX")


def test_the_registration_has_a_name_of_its_own_and_lets_sudo_work(kernel: Path) -> None:
    emulation.register()
    assert written(kernel) == OURS


def test_what_is_registered_is_not_registered_again(kernel: Path) -> None:
    emulation.register()
    (kernel / emulation._name()).write_text("enabled\n")
    (kernel / "register").unlink()
    emulation.register()
    assert not (kernel / "register").exists()


def test_a_registration_that_outlived_its_mount_is_taken_over(kernel: Path) -> None:
    kernel.mkdir(parents=True)
    (kernel / emulation._name()).write_text("enabled\n")
    emulation.register()
    assert kernel.is_mount() and not (kernel / "register").exists()


def test_nothing_stays_when_the_last_node_is_gone(kernel: Path) -> None:
    emulation.register()
    emulation.release(log=print)
    assert not kernel.exists()
    emulation.release(log=print)  # nothing to do, and no error


def test_while_an_image_is_being_made_the_registration_stays(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        def base_packages(self, distro: str) -> tuple[Path, ...]:
            return ()

    def make(*_: object, **__: object) -> str:
        emulation.release(log=print)  # as `gpunode lab down` of another node does meanwhile
        assert kernel.is_mount()
        return "image"

    for module, name in ((machine, "install_missing_packages"), (machine, "raise_inotify_limit")):
        monkeypatch.setattr(module, name, lambda *_, **__: None)
    monkeypatch.setattr(packages_vendor, "programs", lambda **_: ())
    monkeypatch.setattr(packages, "build_repository", lambda *_, **__: Info())
    monkeypatch.setattr(images, "ensure_image", make)
    image, _ = sources.image_of(Variant(distro="debian:12+arm64"), print)
    assert image == "image" and not kernel.is_mount()


def test_without_the_emulator_the_refusal_says_what_to_install(kernel: Path, tmp_path: Path) -> None:
    (tmp_path / "rule").unlink()
    with pytest.raises(RefusedError, match=str(tmp_path / "rule")) as caught:
        emulation.register()
    assert caught.value.fix == "apt-get install qemu-user-static"
    assert not kernel.exists()


def test_a_kernel_without_binfmt_misc_is_refused(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "mount: unknown filesystem type 'binfmt_misc'."
    monkeypatch.setattr(machine, "run", lambda *c, **_: subprocess.CompletedProcess(c, 32, "", said))
    with pytest.raises(RefusedError, match="unknown filesystem type"):
        emulation.register()
    assert not kernel.exists()


def test_a_node_of_another_architecture_takes_its_own_packages_alone() -> None:
    def source(distro: str, path: str) -> RepositorySource:
        return RepositorySource(name="nvidia-cuda", distro=distro, path=path, key="k", fingerprint="F")

    info = RepositoryInfo(
        directory=Path("/srv"),
        sources=(source("debian:12", "x86_64"), source("debian:12+arm64", "sbsa")),
        base={},
    )
    for distro, path in (("debian:12", "x86_64"), ("debian:12+non-free", "x86_64"), ("debian:12+arm64", "sbsa")):
        assert sources.spec_sources(info, distro, "http://lab")["nvidia-cuda"]["url"] == f"http://lab/{path}"
    everyones = RepositoryInfo(directory=Path("/srv"), sources=(source("", "amd64"),), base={})
    assert sources.spec_sources(everyones, "debian:12+arm64", "http://lab") == {}
    assert images._tree_of("debian:12+arm64") == "debian:12+arm64"


def test_the_real_driver_is_not_built_on_an_emulated_node() -> None:
    with pytest.raises(InputError, match="real driver"):
        Variant(distro="debian:12+arm64", real_driver=True)
