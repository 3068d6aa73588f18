"""Profiles for other tools, from exact counts: of BOLT, AutoFDO, LLVM, pprof, callgrind, perf.

`profile` adds up what ran, binary by binary; a file each of the others writes one format.
"""
