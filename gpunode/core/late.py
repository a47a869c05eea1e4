"""What is made when it is first used: made at import, it was a third of a command's start.

`dataclass` is the standard one for a type checker.  Of a frozen one, the first value compiles __init__ and reads the
fields; the other methods are shared by all classes.  `regex` is re.compile.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, AnyStr, NoReturn, cast

__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "is_dataclass", "regex", "replace"]


class _Pattern:
    def __init__(self, text: Any, flags: int) -> None:
        self.asked = (text, flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self.asked), name)
        setattr(self, name, value)
        return value


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A regular expression that is compiled at its first use: its methods, not an argument of re's functions."""
    return cast(re.Pattern[AnyStr], _Pattern(text, flags))


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, **asked: bool) -> Any:
        if cls or not asked.get("frozen") or not asked.keys() <= {"frozen", "kw_only"}:
            return dataclasses.dataclass(cls, **asked)
        return lambda cls: _declared(cls, kw_only=asked.get("kw_only", False))


_LOCK = threading.RLock()


class _Fields:
    """Stands for __dataclass_fields__ of a class until somebody asks."""

    def __init__(self, owner: Any, finish: Callable[[], None]) -> None:
        self.owner, self.finish = owner, finish

    def __get__(self, _value: object, _kind: type) -> object:
        self.finish()
        return self.owner.__dataclass_fields__


def _declared(cls: Any, *, kw_only: bool) -> Any:
    stated = {name: cls.__dict__[name] for name in cls.__annotations__ if name in cls.__dict__}

    def finish() -> None:
        with _LOCK:
            if cls.__init__ is first:
                for name, value in stated.items():  # an earlier attempt may have been interrupted, and took them
                    setattr(cls, name, value)
                dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
                cls.__init__ = _init(cls)  # last: another thread waits in `first` until it is there

    def first(self: Any, *values: object, **named: object) -> None:
        finish()
        cls.__init__(self, *values, **named)

    cls.__init__, cls.__dataclass_fields__ = first, _Fields(cls, finish)
    for name, method in _SHARED.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _init(cls: Any) -> Any:
    """The __init__ of a frozen dataclass."""
    scope: dict[str, Any] = {"_put": object.__setattr__, "_unset": MISSING}
    words, named, body = ["self"], ["*"], []
    for one in fields(cls):
        name = value = one.name
        word = name
        if one.default_factory is not MISSING:
            scope[f"_make_{name}"], word = one.default_factory, f"{name}=_unset"
            value = f"_make_{name}() if {name} is _unset else {name}"
        elif one.default is not MISSING:
            scope[f"_default_{name}"], word = one.default, f"{name}=_default_{name}"
        (named if one.kw_only else words).append(word)
        body.append(f"_put(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join(words + named * (len(named) > 1))
    exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), scope)  # noqa: S102  names of fields alone
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


@cache
def _key(cls: Any) -> Callable[[object], object]:
    names = [one.name for one in fields(cls) if one.compare]
    return attrgetter(*names) if names else lambda _value: ()


def _eq(self: Any, other: Any) -> Any:
    key = _key(self.__class__)
    return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self.__class__)(self))


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse(_self: object, name: str, *_value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r}")


_SHARED = {"__eq__": _eq, "__hash__": _hash, "__repr__": _repr, "__setattr__": _refuse, "__delattr__": _refuse}
