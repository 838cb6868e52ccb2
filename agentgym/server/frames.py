"""Frames between a server and its worker processes: the length in four bytes, then JSON."""

from __future__ import annotations

import asyncio
import struct

_LENGTH = struct.Struct("!I")


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next frame, or None if the other side has closed or died."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Send a frame without waiting until it is read."""
    writer.write(_LENGTH.pack(len(frame)) + frame)
