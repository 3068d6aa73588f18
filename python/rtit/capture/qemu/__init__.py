"""The QEMU back end: `installation.py` finds QEMU, `start.py` starts a program in it, `session.py`
drives the recording, `sink.py` writes what the plugin sends.
"""
