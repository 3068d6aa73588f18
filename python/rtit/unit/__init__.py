"""The trace unit: from what a processor does to Intel PT packets in memory.

`unit` lists every event; each is a function of the unit that `core` declares. `enables` says when
it traces, `packets` makes the bytes, `output` stores them; `events` and `system` have the events
themselves; `state` is what it knows between two of them, `parameters` what the chapter leaves open.
"""
