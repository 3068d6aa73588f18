"""Settings of the documentation: `make docs` builds it in build/docs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import rtit

project = "rtit"
author = "rtit developers"
copyright = author  # noqa: A001 - Sphinx reads this name
version = release = rtit.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "command_help",
    "plain_docstrings",
    "scenario_gallery",
]
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "rtit"
exclude_patterns = ["_extensions", "images/*.py"]

autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
default_role = "code"

# Classes of one name in two modules (such as `Event`) make references by the bare name ambiguous.
# Files outside docs/ (README.md, SECURITY.md) are linked for readers of the repository.
suppress_warnings = ["ref.python", "myst.xref_missing"]
