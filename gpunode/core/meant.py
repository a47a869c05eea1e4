"""The known name that a misspelt one, or the word of another program, may stand for."""

from __future__ import annotations

from collections.abc import Iterable

_ROWS = (  # a name of gpunode, and the words of other programs, and of people, for it
    "provision apply install setup deploy run update upgrade converge",
    "uninstall remove undo delete destroy purge clean; verify check test status health validate",
    "detect facts probe scan inspect info list; doctor diagnose debug logs fix; init config new create",
    "runs history resume; auto latest newest stable default recommended; none off absent; check dry_run",
    "toolkit container_toolkit nvidia_container_toolkit nvidia_docker ctk; driver nvidia nvidia_driver",
    "runtimes engine engines container_runtime container_engine; sources repositories mirrors; up start; down stop",
    "flavour open kernel_open open_kernel_modules proprietary; proxy http_proxy https_proxy; distro distribution",
    "x86_64 amd64; aarch64 arm64; limit host hosts; config spec values; version v",
)
_FOREIGN = {word: row.split()[0] for row in "; ".join(_ROWS).split(";") for word in row.split()[1:]}


def nearest(word: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Those of the known names that the word may stand for, the likeliest first.

    >>> nearest("container-toolkit", ["driver", "toolkit"]), nearest("Drivr", ["driver"]), nearest("x", ["driver"])
    (['toolkit'], ['driver'], [])
    """
    import difflib  # slow to import, and only for messages

    names = list(known)
    foreign = _FOREIGN.get(word.lower().replace("-", "_"), "")
    if foreign in names:
        return [foreign]
    within = [name for name in names if len(word) > 3 and word in name.split("-")]
    if len(within) == 1:  # cuda: nvidia-cuda
        return within
    return difflib.get_close_matches(word, names, n=count, cutoff=cutoff)


def meant(word: str, known: Iterable[str], otherwise: str = "", *, prefix: str = "", cutoff: float = 0.6) -> str:
    """The question whether the nearest known name, behind `prefix`, is meant, else `otherwise`.

    >>> meant("cpu", ["gpu"], prefix="kubernetes."), meant("x", ["gpu"], "remove it")
    ("did you mean 'kubernetes.gpu'?", 'remove it')
    """
    return next((f"did you mean {prefix + near!r}?" for near in nearest(word, known, cutoff=cutoff)), otherwise)
