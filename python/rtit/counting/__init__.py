"""What a program executes, counted while it runs and without a trace: `rtit.stat(argv)`.

`run.py` runs it, `tally.py` reads what the plugin counted, `profile.py` makes counts by binary of
it, `spread.py` compares runs.
"""
