"""Choices that the Intel SDM leaves open: `table` declares them, `page` documents them."""
