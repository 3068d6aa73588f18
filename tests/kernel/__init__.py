"""A kernel that was made for tests: its code, processes that use it, and recordings of them."""
