"""Independent decoders, each run as a process of its own."""
