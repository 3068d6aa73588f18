"""The perf back end: PT hardware, through the kernel and `perf record`.

`availability.py` says whether this machine can record, and if not, why; `session.py` runs perf.
Tested with a stand-in for perf and for the kernel's files, not yet on PT hardware.
"""
