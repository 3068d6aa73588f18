"""One self-contained HTML page: a style, scripts, and compressed data; nothing from elsewhere.

The Content-Security-Policy of the page allows its own scripts and style, by their hashes, and
nothing else: no script that a name brings into the page runs.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

from rtit.text_escaping import escape_control_characters, format_json

_COMPRESSION = 6
_FOLDER = Path(__file__).parent


def read_asset(name: str, folder: Path = _FOLDER) -> str:
    """Return the text of a style or script of this package, or of another folder."""
    return (folder / name).read_text(encoding="ascii")


def common_style() -> str:
    """Return the style that all pages share."""
    return read_asset("page.css")


def compress_data(value: object) -> str:
    """Return JSON as the base64 text of a gzip file, which no markup can be part of."""
    return b64encode(
        gzip.compress(format_json(value).encode("ascii"), _COMPRESSION, mtime=0)
    ).decode()


def content_security_policy(style: str, script: str, *, connects: bool = False) -> str:
    """Return the policy of a page with this style and script.

    `connects`: the script may send requests to the server of the page.
    """
    rules = {
        "default-src": "'none'",
        "style-src": _hash_source(style),
        "script-src": _hash_source(script),
        "connect-src": "'self'" if connects else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash_source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def html_page(
    title: str, body: str, *, style: str, script: str, data: str = "", connects: bool = False
) -> bytes:
    """Return a page. `body` is markup, `data` a text of `compress_data`, which the script finds in
    the element `data`.
    """
    policy = content_security_policy(style, script, connects=connects)
    block = f'<script type="application/gzip" id="data">{data}</script>\n' if data else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(escape_control_characters(title))}</title>\n"
        f"<style>{style}</style></head>\n<body>\n{body}\n{block}"
        f"<script>{script}</script>\n</body></html>\n"
    ).encode()
