"""A remote server for gdb that answers from a recording."""
