"""Record programs: back ends run a program and drive trace units; the store writes perf.data.

`request.py` is what a user asks for, `session.py` a recording under way. `qemu/`, `ptrace/` and
`perf/` are the back ends, `store/` writes packets and sideband records.
"""
