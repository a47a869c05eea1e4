"""selftest: what a machine says of its GPUs by several ways, compared field by field, and judged check by check.

`judge(seen)` runs the table of `checks`; `record` is what was captured, `readings` bring each source into one shape.
"""
