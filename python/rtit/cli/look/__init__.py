"""The commands that record a program and show what it executed, one file each."""
