"""Recording: back ends that make a real program drive trace units, and what they write.

`request.py` is what a recording is asked for, `session.py` a recording under way. `qemu/` and
`ptrace/` are the back ends, `store/` what becomes of the packets.
"""
