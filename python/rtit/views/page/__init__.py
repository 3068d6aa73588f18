"""One page about a recording: `rtit view`.

`page_data` computes what the page shows, from the views that other commands print; `rendering`
writes the page, and `server` serves it. Each number on the page is one of the command line.
"""
