"""What the unit knows between two events: plain values."""
