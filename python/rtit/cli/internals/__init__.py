"""The commands about Intel PT itself: packets, registers, the trace unit, one file each."""
