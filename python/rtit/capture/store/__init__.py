"""Write packets and sideband records.

`recording_writer.py` writes the file, `packet_store.py` keeps all packets or the last ones
(`size_limits.py`), `deleted_files.py` keeps the code of deleted files, `unit_output.py` sets up the
memory that a trace unit writes to.
"""
