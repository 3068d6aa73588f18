"""Count what a program executes, without a trace: `rtit.stat(argv)`.

`run.py` runs the program and compares runs; `program_totals.py` and `profile.py` read what the
plugin leaves, and add it up by binary.
"""
