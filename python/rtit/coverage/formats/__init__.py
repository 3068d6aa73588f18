"""Writers of coverage files: lcov, Cobertura, drcov, AFL, HTML and text."""
