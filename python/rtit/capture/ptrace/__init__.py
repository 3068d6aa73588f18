"""The ptrace back end: `tracer.py` steps a program, `recorder.py` drives a trace unit a thread with
what it tells, `session.py` ties them together.
"""
