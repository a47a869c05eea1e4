#!/bin/sh
# lint.sh: the static checks; every one runs, and the exit status says whether any failed.  ansible-lint takes longer than
# these together: see tiers.py.
set -u
failed=''

check() {
    name=$1
    shift
    echo "--- $name"
    "$@" || failed="$failed $name"
}

# Scripts without .sh (stand-ins, .ci/run) are known by their first line.  An unpacked sdist has no git to ask.
shell_files() {
    if git ls-files --error-unmatch .ci/lint.sh >/dev/null 2>&1; then
        { git ls-files '*.sh'; git grep -lIE '^#! ?/bin/sh' -- ':!*.md' ':!*.py'; } | sort -u
    else
        set -- -path './.venv' -prune -o -path './.*_cache' -prune -o -type f
        { find . "$@" -name '*.sh' -print
          find . "$@" ! -name '*.md' ! -name '*.py' -exec grep -lIE '^#! ?/bin/sh' {} +
        } | sort -u
    fi
}

check ruff-format ruff format --check --quiet .
check ruff ruff check --quiet .
check mypy mypy
# shellcheck disable=SC2046 # the list is meant to be split; no tracked name has a space
check shellcheck shellcheck --external-sources $(shell_files)
check site env NO_MKDOCS_2_WARNING=1 mkdocs build --strict
check figures python .ci/figures.py --check
[ -z "$failed" ] || echo "failed:$failed" >&2
[ -z "$failed" ]
