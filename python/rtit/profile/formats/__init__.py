"""Writers of profiles for other tools: BOLT, AutoFDO, LLVM, callgrind, pprof and perf."""
