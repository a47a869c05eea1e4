"""The folders of scripts that were killed go with the next script; those of scripts at work, and of others, stay."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpunode.core.errors import InputError
from gpunode.core.remote import program

SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]
PROXY = {"proxy": b"http://user:secret@proxy:3128\n"}


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return list(request.param)


def start(shell: list[str], tmp: Path, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*shell, "-c", program(script, PROXY)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp)},
        start_new_session=True,
    )


def run(shell: list[str], tmp: Path) -> list[str]:
    """Another script → the folders that it leaves."""
    done = start(shell, tmp, "echo ran")
    assert done.communicate()[0] == "ran\n" and done.returncode == 0
    return left(tmp)


def left(tmp: Path) -> list[str]:
    return sorted(path.name for path in tmp.iterdir())


def sleeping(shell: list[str], tmp: Path) -> tuple[subprocess.Popen[str], int]:
    """A script at work, and the process that runs it below the first one."""
    script = "echo $GPUNODE_IN; sh -c 'echo $PPID'; while :; do sleep 0.1; done"
    process = start(shell, tmp, script)
    assert process.stdout
    assert process.stdout.readline().startswith(f"{tmp}/gpunode.")
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str], inner: int) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    stat, until = Path(f"/proc/{inner}/stat"), time.monotonic() + 10
    while stat.exists() and ") Z" not in stat.read_text() and time.monotonic() < until:
        time.sleep(0.05)


def test_what_a_killed_script_left_goes_with_the_next_one(shell: list[str], tmp_path: Path) -> None:
    process, inner = sleeping(shell, tmp_path)
    [folder] = tmp_path.iterdir()
    assert (folder / "proxy").read_bytes() == PROXY["proxy"]
    assert run(shell, tmp_path) == [folder.name], "it is at work"
    end(process, inner)
    assert left(tmp_path) == [folder.name]
    assert run(shell, tmp_path) == []


def test_a_script_whose_outer_shell_alone_was_killed_keeps_its_folder(shell: list[str], tmp_path: Path) -> None:
    process, inner = sleeping(shell, tmp_path)
    [folder] = tmp_path.iterdir()
    assert inner != process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert run(shell, tmp_path) == [folder.name]
    end(process, inner)
    assert run(shell, tmp_path) == []


def made(path: Path, alive: str | None = None, *, mode: int = 0o700, age: float = 0) -> Path:
    path.mkdir(mode=mode)
    path.chmod(mode)
    (path / "proxy").write_bytes(PROXY["proxy"])
    if alive is not None:
        (path / ".alive").write_text(alive)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def own_line() -> str:
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    return f"{os.getpid()} {stat.rpartition(') ')[2].split()[19]} {Path('/proc/self/ns/pid').readlink()}\n"


@pytest.mark.parametrize(
    ("alive", "mode", "age", "stays"),
    [
        (own_line(), 0o700, 0, True),
        (own_line(), 0o700, 200_000, True),
        (f"{own_line().split()[0]} 1 {own_line().split()[2]}\n", 0o700, 0, False),
        (f"999999999 1 {own_line().split()[2]}\n", 0o700, 0, False),
        (f"999999999 1 {own_line().split()[2]}\n{own_line()}", 0o700, 0, True),
        ("999999999 1 pid:[1]\n", 0o700, 0, True),
        ("999999999 1 pid:[1]\n", 0o700, 200_000, False),
        (None, 0o700, 0, True),
        (None, 0o700, 200_000, False),
        ("", 0o700, 200_000, False),
        (None, 0o755, 200_000, True),
        (None, 0o1777, 200_000, True),
    ],
    ids=[
        "at work",
        "long at work",
        "the number belongs to another process now",
        "ended",
        "one of two has ended",
        "of another container",
        "of another container, a day ago",
        "just begun",
        "no list of processes, a day ago",
        "killed at once, a day ago",
        "others may read it",
        "others may write into it",
    ],
)
def test_only_what_is_left_behind_goes(
    alive: str | None, mode: int, age: float, stays: bool, shell: list[str], tmp_path: Path
) -> None:
    made(tmp_path / "gpunode.aaaaaa", alive, mode=mode, age=age)
    assert run(shell, tmp_path) == (["gpunode.aaaaaa"] if stays else [])


def test_links_files_and_folders_of_others_are_left_alone(shell: list[str], tmp_path: Path) -> None:
    """Anybody can put names into the temporary folder: none of them makes the sweep touch what is elsewhere."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    precious = made(tmp_path / "precious", age=200_000)
    (tmp / "gpunode.linked").symlink_to(precious)
    (tmp / "gpunode.nowher").symlink_to(tmp_path / "nowhere")
    (tmp / "gpunode.afiled").write_text("x")
    made(tmp / "gpunode.toolong", age=200_000)
    inside = made(tmp / "gpunode.inside", age=0)
    (inside / "link").symlink_to(precious)
    os.utime(inside, (time.time() - 200_000, time.time() - 200_000))
    if os.geteuid() == 0:
        os.chown(made(tmp / "gpunode.theirs", age=200_000), 65534, 65534)
    kept = {"gpunode.linked", "gpunode.nowher", "gpunode.afiled", "gpunode.toolong"}
    assert set(run(shell, tmp)) == kept | ({"gpunode.theirs"} if os.geteuid() == 0 else set())
    assert (precious / "proxy").exists()


def test_a_request_cannot_name_the_list_of_processes() -> None:
    with pytest.raises(InputError, match="request file name"):
        program(":", {".alive": b""})


def test_what_stands_around_a_script_is_clean_for_shellcheck() -> None:
    checker = shutil.which("shellcheck")
    assert checker
    done = subprocess.run([checker, "--shell=sh", "-"], input=program(":\n", PROXY), capture_output=True, text=True)
    assert done.stdout == ""
