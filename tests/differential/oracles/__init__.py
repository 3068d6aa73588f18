"""Independent decoders, each run as a separate process."""
