"""Run a shell command in a sandbox without network, and forward a local port to the endpoint's Unix socket.

Usage: ``python -c SOURCE SOCKET PORT COMMAND``. The exit code is the command's, or 128 plus the number of the signal
that killed it.
"""

from __future__ import annotations

import asyncio
import os
import sys

CHUNK = 1 << 16


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection to its end."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:  # one side has closed, so close the other side, too
        pass
    finally:
        writer.close()


async def main(path: str, port: int, command: str) -> int:
    """Forward connections while the command runs, and return its exit code."""
    try:
        _, probe = await asyncio.open_unix_connection(path)
    except OSError as error:
        print(f"the endpoint's socket {path} cannot be reached in the sandbox: {error}", file=sys.stderr)
        return 125
    probe.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_endpoint, to_endpoint = await asyncio.open_unix_connection(path)
        except OSError:  # the run is ending, and the command sees a closed connection
            writer.close()
            return
        await asyncio.gather(pump(reader, to_endpoint), pump(from_endpoint, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    process = await asyncio.create_subprocess_exec("sh", "-c", command)
    code = await process.wait()
    server.close()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    exit_code = asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    sys.stderr.flush()
    os._exit(exit_code)
