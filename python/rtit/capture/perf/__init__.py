"""The perf back end: real PT, by the kernel and `perf record`. `find.py` says whether this machine
can, and why not; `session.py` starts perf and waits for it.

It was tried with a stand-in for perf and for the kernel's files alone, not yet on PT hardware.
"""
