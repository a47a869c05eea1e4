"""No function of a program for nodes changes a variable of its callers; the check of that is itself checked."""

from __future__ import annotations

from importlib import resources

import pytest
from shell_scopes import findings
from shell_syntax import Function, Group, SyntaxProblem, parse

from gpunode.node import script

NODE = resources.files("gpunode.node")
PARTS = sorted(
    file.name for folder in NODE.iterdir() if folder.is_dir() for file in folder.iterdir() if file.name.endswith(".sh")
)


@pytest.mark.parametrize("name", PARTS)
def test_no_function_sets_a_variable_that_its_callers_rely_on(name: str) -> None:
    """Each program as it is sent; a part that only goes with others is read alone as well."""
    assert [str(finding) for finding in findings(script(name))] == []


OUTER = "outer() { x=1; inner; echo $x; }\nouter"
CLOBBERED = {
    "a helper saves a variable under a name of its caller's": """
        id=
        save() { state=$id; id=; echo; id=$state; }
        enable() { save "$1"; }
        # sets: state
        look() { state=$(ask "$1"); }
        services() { look x; enable x; [ "$state" = active ] || echo no; }
        services""",
    "a helper two calls down takes the folder that a declared output names": """
        baseline() { kept=/baseline; mkdir "$kept"; }
        journal() { baseline; echo "$1"; }
        # sets: kept
        remember() { kept=/packages; }
        transaction() { remember; cp x "$kept"; journal intent; back; }
        back() { cp "$kept/x" x; }
        transaction""",
    "a loop over lines": "inner() { read -r x; }; outer() { while read -r x; do inner; echo $x; done; }; outer",
    "a loop over words": "inner() { for x in 1; do :; done; }; outer() { for x in a; do inner; echo $x; done; }; outer",
    "the caller is the main program": "inner() { x=2; }; x=1; inner; echo $x",
    "a value that is set only where it was empty": "inner() { : ${x:=2}; }; outer() { x=; inner; echo $x; }; outer",
    "a number": "inner() { : $((x += 1)); }\n" + OUTER,
    "unset": "inner() { unset x; }\n" + OUTER,
    "export": "inner() { export x=2; }\n" + OUTER,
    "recursion": "walk() { for x in $1; do walk $x; echo $x; done; }; walk 1",
    "a function runs its arguments": 'inner() { x=2; }; run() { "$@"; }; outer() { x=1; run inner; echo $x; }; outer',
    "a name that is put together": 'do_a() { x=2; }; outer() { x=1; "do_$1"; echo $x; }; outer a',
    "a dispatcher": """
        a_go() { x=2; }
        # calls: a_$1 b_$1
        to() { "${m}_$1"; }
        outer() { x=1; to go; echo $x; }
        outer""",
    "within one subshell": "inner() { x=2; }; outer() { (x=1; inner; echo $x); }; outer",
    "within a pipeline": "inner() { x=2; }; outer() { a | while read -r x; do inner; echo $x; done; }; outer",
    "a subshell started afterwards reads it": "inner() { x=2; }; outer() { x=1; inner; (echo $x); }; outer",
    "a here-document reads it": "inner() { x=2; }; outer() { x=1; inner; cat <<EOF\n$x\nEOF\n}\nouter",
    "in front of a function": "inner() { :; }; mid() { x=2 inner; }; outer() { x=1; mid; echo $x; }; outer",
    "a trap of the caller's": "lock() { x=1; trap 'rm $x' EXIT; }; inner() { x=2; }; lock; inner",
    "a trap that calls": "clean() { rm $x; }; outer() { x=1; trap clean EXIT; }; inner() { x=2; }; outer; inner",
    "eval": 'f() { eval "$1=2"; }; f x',
    "a file that is read": "f() { . /etc/os-release; }; f",
    "export of any name": 'f() { export "$1=2"; }; f x',
    "a variable that comes from nowhere": "set_() { x=1; }; get() { echo $x; }; set_; get",
}


@pytest.mark.parametrize("text", CLOBBERED.values(), ids=CLOBBERED)
def test_a_variable_that_a_call_changes_is_found(text: str) -> None:
    assert findings(text)


KEPT = {
    "a prefix": "inner() { _inner_x=2; echo $_inner_x; }\n" + OUTER,
    "a function with a subshell as its body": "inner() (x=2; echo $x)\n" + OUTER,
    "a command substitution": "inner() { x=2; }; outer() { x=1; y=$(inner); echo $x $y; }; outer",
    "a pipeline": "inner() { x=2; }; outer() { x=1; inner | cat; echo $x; }; outer",
    "the background": "inner() { x=2; }; outer() { x=1; inner & echo $x; }; outer",
    "a subshell": "inner() { x=2; }; outer() { x=1; (inner); echo $x; }; outer",
    "a declared output": "# sets: x\ninner() { x=2; }\nouter() { inner; echo $x; }\nouter",
    "an output by a pattern": '# sets: NV_*\nload() { export "$1=2"; }\nload NV_A',
    "a counter of the main program": "n=0\n# sets: n\nadd() { n=$((n + 1)); }\nmid() { add; }\nmid; echo $n",
    "a constant of the main program": "A=1; f() { echo $A; }; f",
    "the environment": "f() { echo $HOME; }; f",
    "siblings with names alike": "a() { x=1; echo $x; }; b() { x=2; echo $x; }; a; b",
    "in front of another program": "inner() { x=2 awk 1; }\n" + OUTER,
    "a call that never returns": """
        die() { x=2; case $1 in a) exit 1 ;; *) exit 2 ;; esac; }
        fail() { die "$1"; }
        outer() { x=1; ok || fail a; echo $x; }
        outer""",
    "the subshell sets it": "inner() { x=2; }; outer() { inner; a | while read -r x; do echo $x; done; }; outer",
    "a quoted text": "inner() { echo 'x=2 $(x=3)'; }\n" + OUTER,
    "a comment": "inner() { echo; } # x=2\n" + OUTER,
    "a quoted here-document": "inner() { cat <<'EOF'\n$x ${x:=2}\nEOF\n}\n" + OUTER,
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_leaks_nothing_is_not_found(text: str) -> None:
    assert [str(finding) for finding in findings(text)] == []


@pytest.mark.parametrize(
    "text", ["if a; then b", "a | ", "f() {", "case x in a) b", "echo $(a", 'echo "a', "a `b`", "a ) b"]
)
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(SyntaxProblem):
        parse(text)


def test_a_function_has_the_comment_above_it() -> None:
    tree = parse("# of nobody\n\n# says\n# sets: x\nf() {\n  a <<E && b || { c; } # d\nf() { :; }\nE\n}\n")
    assert isinstance(tree, Group)
    assert [(f.name, f.about) for f in tree.items if isinstance(f, Function)] == [("f", ("says", "sets: x"))]
