"""The commands that move recordings between machines and formats, one file each."""
