"""The commands that count, compare and debug recordings, one file each."""
