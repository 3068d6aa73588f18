"""The command line: one file for each command, each with `add_arguments(parser)` and
`run(arguments)`, which returns the exit code.

`look`, `measure`, `move` and `internals` hold the commands as `rtit --help` groups them; the files
beside them are shared.
"""
