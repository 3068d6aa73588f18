"""Where the bytes go (section 33.2.7)."""
