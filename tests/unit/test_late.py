"""Classes and patterns that are made when they are first used behave as those that are made at once."""

from __future__ import annotations

import dataclasses
import pickle
import re
import threading
from typing import Any

import pytest

from gpunode.core import late

BODY = {"name": "str", "parts": "tuple[str, ...]", "seen": "list[str]", "note": "str"}
DEFAULTS = {"parts": ()}


def made(decorator: Any, **asked: bool) -> Any:
    """The same class by a decorator, with a base, a default, a factory and a field that does not compare."""
    base = decorator(**asked)(type("Base", (), {"__annotations__": {"host": "str"}, "__doc__": "A base."}))
    body = {
        "__annotations__": BODY,
        "__doc__": "A value.",
        **DEFAULTS,
        "seen": dataclasses.field(default_factory=list, compare=False),
        "note": dataclasses.field(default="", repr=False),
    }
    return decorator(**asked)(type("Value", (base,), body))


@pytest.fixture(params=[True, False], ids=["by name", "by place"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    asked = {"frozen": True, "kw_only": bool(request.param)}
    return made(late.dataclass, **asked), made(dataclasses.dataclass, **asked)


def said(act: Any) -> str:
    try:
        return repr(act())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    "act",
    [
        lambda cls: cls(host="a", name="n"),
        lambda cls: cls(host="a", name="n").seen is cls(host="a", name="n").seen,
        lambda cls: cls(host="a", name="n") == cls(host="a", name="n", seen=["x"]),
        lambda cls: cls(host="a", name="n") == cls(host="a", name="n", note="x"),
        lambda cls: cls(host="a", name="n") == 1,
        lambda cls: len({cls(host="a", name="n"), cls(host="a", name="n"), cls(host="b", name="n")}),
        lambda cls: cls("a", "n"),
        lambda cls: cls(host="a"),
        lambda cls: cls(host="a", name="n", other=1),
        lambda cls: cls(host="a", name="n", parts=[]).__hash__(),
        lambda cls: dataclasses.replace(cls(host="a", name="n"), note="x").note,
        lambda cls: dataclasses.asdict(cls(host="a", name="n")),
        lambda cls: [one.name for one in dataclasses.fields(cls)],
        lambda cls: dataclasses.is_dataclass(cls),
        lambda cls: type("Plain", (cls,), {})(host="a", name="n"),
        lambda cls: cls.__match_args__ if cls(host="a", name="n") else (),
    ],
)
def test_a_late_class_does_as_a_standard_one(act: Any, both: tuple[Any, Any]) -> None:
    ours, standard = both
    assert said(lambda: act(ours)) == said(lambda: act(standard))


def test_a_late_class_is_frozen(both: tuple[Any, Any]) -> None:
    value = both[0](host="a", name="n")
    for name in ("name", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, "m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        del value.name
    assert value.name == "n"


def test_what_follows_the_init_follows_the_late_one() -> None:
    seen: list[str] = []
    body = {"__annotations__": {"name": "str"}, "__doc__": "A.", "__post_init__": lambda self: seen.append(self.name)}
    decorate: Any = late.dataclass(frozen=True)
    decorate(type("Value", (), body))(name="n")
    assert seen == ["n"]


@late.dataclass(frozen=True, kw_only=True)
class Sent:
    """A value of a class that the receiver has made none of."""

    name: str
    parts: tuple[str, ...] = ()


def test_a_value_that_another_process_made_compares_before_one_is_made_here() -> None:
    value = object.__new__(Sent)
    value.__dict__.update(name="n", parts=())
    assert value == pickle.loads(pickle.dumps(value)) == Sent(name="n")
    assert repr(value) == "Sent(name='n', parts=())"


def test_a_class_whose_making_was_interrupted_is_made_by_the_next_value(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = made(late.dataclass, frozen=True)

    dataclasses.fields(cls.__base__)  # the base is made, and is not what is interrupted

    def interrupted(_cls: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(late, "_init", interrupted)
        cls("a", "n")
    assert (cls("a", "n").seen, cls("a", "n").note) == ([], "")


def test_threads_that_make_the_first_value_at_once_all_get_one() -> None:
    for _ in range(20):
        cls = made(late.dataclass, frozen=True, kw_only=True)
        start = threading.Barrier(8)
        values: list[Any] = []

        def make(start: Any = start, values: Any = values, cls: Any = cls) -> None:
            start.wait()
            values.append(cls(host="a", name="n"))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert values == [cls(host="a", name="n")] * 8


def test_a_pattern_is_compiled_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    real = re.compile

    def noted(*asked: Any) -> Any:
        compiled.append(asked)
        return real(*asked)

    monkeypatch.setattr(re, "compile", noted)
    found = late.regex("a(b)", re.IGNORECASE)
    assert compiled == []
    assert [found.sub("", "xABy"), found.findall("ab")] == ["xy", ["b"]]
    assert set(compiled) == {("a(b)", re.IGNORECASE)}
