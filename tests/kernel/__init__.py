"""A generated kernel: its code, processes that use it, and recordings of them."""
