"""The events of a trace unit: programs, operating systems, registers, and VMX, SMM, SGX, TXT."""
