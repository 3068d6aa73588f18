"""Exact counts of what ran, by binary, and profiles for other tools.

`build_profile` adds up the counts; `formats` has a module per format: BOLT, AutoFDO, LLVM, pprof,
callgrind, perf.
"""
