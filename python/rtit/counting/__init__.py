"""Count what a program executes, without a trace: `rtit.stat(argv)`.

`run.py` runs the program; `program_totals.py` and `process_counts.py` read what the plugin leaves;
`profile.py` adds them up by binary, `run_variation.py` compares runs.
"""
