"""Two recordings, compared: where their paths part, and what ran more often in one.

`diff` compares; `compare.py` goes along two threads at once, `counts.py` compares how often, and
`tree.py` within whom.
"""
