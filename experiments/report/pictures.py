"""Pictures with what a network says of them and how sure it is."""

import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

__all__ = ["picture", "png"]


def picture(source: str, alt: str, right: bool, verdict: str, entropy: float, classes: int, extra: str = "") -> str:
    """A picture with a verdict, its entropy, and a bar of how much that is of the largest possible one."""
    share = min(max(entropy / math.log(classes), 0.0), 1.0)
    return (
        f'<figure class="{"right" if right else "wrong"}"><img src="{source}" alt="{escape(alt)}">'
        f"<figcaption><b>{escape(verdict)}</b><br>{entropy:.2g} nats{f'<br>{escape(extra)}' * bool(extra)}"
        f'<span class="sure" title="{share:.0%} of the largest possible entropy"><i style="width:{share:.1%}"></i></span>'
        "</figcaption></figure>"
    )


def png(pixels: Sequence[int], width: int, largest: int = 16) -> bytes:
    """A greyscale PNG, dark on light, of values from 0 to ``largest`` given row by row."""
    grey = [255 - round(255 * min(max(value, 0), largest) / largest) for value in pixels]
    rows = b"".join(b"\0" + bytes(grey[start : start + width]) for start in range(0, len(grey), width))
    header = struct.pack(">IIBBBBB", width, len(grey) // width, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
