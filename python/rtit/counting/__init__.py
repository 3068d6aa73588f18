"""Count what a program executes, without a trace: `rtit.stat(argv)`.

`counted_run.py` runs the program and compares runs; `program_totals.py` and `process_counts.py`
read what the plugin leaves, and add it up by binary.
"""
