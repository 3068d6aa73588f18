"""A recording for gdb: a remote server that answers with what was recorded."""
