"""Values that show themselves in a notebook."""

from __future__ import annotations

from importlib import import_module


class NotebookDisplay:
    """Base of the classes that `rtit.views.notebook` can draw."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # By name: the views import the classes that they draw.
        return str(import_module("rtit.views.notebook").draw(self))
