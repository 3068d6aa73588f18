"""`python -m rtit` is the `rtit` command."""

import sys

from rtit.cli.main import main

sys.exit(main())
