"""What becomes of packets and sideband: `keeper.py` is the file, `extent.py` and `ring.py` how much
of the packets it has, `output.py` the memory that a trace unit writes to before.
"""
