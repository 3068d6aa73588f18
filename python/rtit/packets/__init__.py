"""The packets of Intel PT (section 33.4.2): one declaration each, and what derives from it.

>>> from rtit.packets import decode, describe, encode
>>> encode("TIP", ip_bytes=1, payload=0x1308).hex(" ")
'2d 08 13'
>>> describe(decode(b"\\x48"))
'TNT bits=NNTNN'

`table` holds the declarations. Payloads stay raw: joining an IP payload with LastIP is the
business of those who write and read streams.
"""

from rtit.packets.decode import Data, ItemSize, Truncated, decode
from rtit.packets.encode import Value, encode, encode_cyc, encode_tnt, encoder
from rtit.packets.packet import Packet, describe, reencode, to_json
from rtit.packets.scan import (
    PSB,
    BadBytes,
    BlockContext,
    find_psb,
    iterate_packets,
    scan,
    scan_chunks,
)
from rtit.packets.table import (
    BLOCK_TYPES,
    CFE_TYPES,
    EVD_TYPES,
    FORBIDDEN_IN_BLOCK,
    NAMES,
    WAKE_REASONS,
    item_name,
)

__all__ = [
    "BLOCK_TYPES",
    "CFE_TYPES",
    "EVD_TYPES",
    "FORBIDDEN_IN_BLOCK",
    "NAMES",
    "PSB",
    "WAKE_REASONS",
    "BadBytes",
    "BlockContext",
    "Data",
    "ItemSize",
    "Packet",
    "Truncated",
    "Value",
    "decode",
    "describe",
    "encode",
    "encode_cyc",
    "encode_tnt",
    "encoder",
    "find_psb",
    "item_name",
    "iterate_packets",
    "reencode",
    "scan",
    "scan_chunks",
    "to_json",
]
