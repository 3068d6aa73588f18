"""Count what a program executes, without a trace: `rtit.stat(argv)`.

`run.py` runs the program, `process_counts.py` reads the counts that the QEMU plugin leaves,
`profile.py` adds them up by binary, `run_variation.py` compares runs.
"""
