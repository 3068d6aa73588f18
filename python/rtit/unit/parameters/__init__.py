"""What the chapter leaves open: `table` declares it, `page` writes docs/parameters.md from that."""
