"""The ptrace back end: `tracer.py` single-steps a program, `recorder.py` drives a trace unit per
thread with the tracer's events, `shared_cpus.py` lets threads share CPUs, `session.py` connects
them.
"""
