"""The QEMU back end: `find.py` finds a QEMU, `start.py` starts a program in it, `session.py`
drives the recording, `sink.py` takes what the plugin says.
"""
