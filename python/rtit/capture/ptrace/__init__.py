"""The ptrace back end: `session.py` single-steps a program, `recorder.py` drives a trace unit per
thread with the tracer's events, `shared_cpus.py` lets threads share CPUs.
"""
