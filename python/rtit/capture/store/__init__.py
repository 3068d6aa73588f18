"""Write packets and sideband records.

`recording_writer.py` writes the file, `packet_store.py` keeps all packets or the last ones,
`deleted_files.py` keeps the code of deleted files.
"""
