"""rtit: Intel Processor Trace, complete, in software."""
