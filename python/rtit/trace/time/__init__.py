"""Time of rows: timing samples, bounds, perf's times, the clocks of guests."""
