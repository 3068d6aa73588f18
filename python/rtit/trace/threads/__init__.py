"""Which thread ran which part of a stream."""
