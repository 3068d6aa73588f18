"""Time of rows: timing samples, bounds, the clocks of guests."""
