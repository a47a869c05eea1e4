"""The known name that a misspelt one, or the word of another program, may stand for."""

from __future__ import annotations

from collections.abc import Iterable

_FOREIGN = {  # words of other programs, and of people → words of gpunode, where these are known
    **dict.fromkeys(("apply", "install", "setup", "deploy", "run", "update", "upgrade", "converge"), "provision"),
    **dict.fromkeys(("remove", "undo", "delete", "destroy", "purge", "clean"), "uninstall"),
    **dict.fromkeys(("check", "test", "status", "health", "validate"), "verify"),
    **dict.fromkeys(("facts", "probe", "scan", "inspect", "info", "list"), "detect"),
    **dict.fromkeys(("diagnose", "debug", "logs", "fix"), "doctor"),
    **dict.fromkeys(("config", "new", "create"), "init"),
    **dict.fromkeys(("history", "resume"), "runs"),
    **dict.fromkeys(("latest", "newest", "stable", "default", "recommended"), "auto"),
    **dict.fromkeys(("container_toolkit", "nvidia_container_toolkit", "nvidia_docker", "ctk"), "toolkit"),
    **dict.fromkeys(("engine", "engines", "container_runtime", "container_engine"), "runtimes"),
    **dict.fromkeys(("nvidia", "nvidia_driver"), "driver"),
    **dict.fromkeys(("open", "kernel_open", "open_kernel_modules", "proprietary"), "flavour"),
    **dict.fromkeys(("off", "absent"), "none"),
    "repositories": "sources",
    "mirrors": "sources",
    "http_proxy": "proxy",
    "https_proxy": "proxy",
    "distribution": "distro",
    "amd64": "x86_64",
    "arm64": "aarch64",
    "dry_run": "check",
    "host": "limit",
    "hosts": "limit",
    "start": "up",
    "stop": "down",
}


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
