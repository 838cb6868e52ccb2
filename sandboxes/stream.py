"""The connection to a worker: bytes in both directions at the same time, with a deadline, over pipes or a socket."""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable

_CHUNK = 1 << 18
_DOCKER_HEAD = struct.Struct(">BxxxI")
_FRAME_HEAD = struct.Struct(">cI")
_STDOUT = 1


class StreamEnded(Exception):
    """The other side is gone."""


class Stream:
    """A connection that receives frames from a worker and sends bytes to it.

    Args:
        read_fd: file descriptor from which frames are read.
        write_fd: file descriptor to which requests are written; equal to ``read_fd`` for a socket.
        is_docker: True if the bytes arrive in Docker's packets, each from one of the container's outputs.
        on_close: closes the object that owns the descriptors.
    """

    def __init__(self, read_fd: int, write_fd: int, on_close: Callable[[], None], *, is_docker: bool = False) -> None:
        self._read_fd, self._write_fd, self._on_close, self._is_docker = read_fd, write_fd, on_close, is_docker
        self._packets, self._frames, self._outgoing = bytearray(), bytearray(), bytearray()
        self._is_open = True
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # so that no descriptor is closed, and its number reused, while a thread waits on it
        self._in_use = threading.Lock()
        self.stray = b""
        """Last output on the worker's own stderr, which explains why it did not start."""
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)

    def push(self, data: bytes) -> None:
        """Queue data, which is sent while waiting for the next frames."""
        self._outgoing += data

    def next_frame(self, deadline: float) -> tuple[bytes, bytes]:
        """Return kind and content of the next frame.

        Args:
            deadline: time of ``time.monotonic``.

        Raises:
            StreamEnded: the other side is gone.
            TimeoutError: no frame arrived before the deadline.
        """
        while (frame := self._parsed()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._move(left_s)
        return frame

    @property
    def is_open(self) -> bool:
        """Return False if the other side has closed the connection; checks without waiting."""
        if not self._is_open:
            return False
        poll = select.poll()
        poll.register(self._read_fd, 0)
        return not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            os.eventfd_write(self._wake, 1)
            with self._in_use:
                self._on_close()
                os.close(self._wake)

    def _move(self, left_s: float) -> None:
        with self._in_use:
            if not self._is_open:
                raise StreamEnded
            self._wait_and_move(left_s)

    def _wait_and_move(self, left_s: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._read_fd, select.POLLIN)
        if self._outgoing:
            both = select.POLLIN if self._write_fd == self._read_fd else 0
            poll.register(self._write_fd, select.POLLOUT | both)
        try:
            for fd, event in poll.poll(max(1, int(left_s * 1000))):
                if fd == self._write_fd and event & select.POLLOUT:
                    del self._outgoing[: os.write(self._write_fd, self._outgoing[:_CHUNK])]
                if fd == self._read_fd and event & ~select.POLLOUT:
                    self._receive(os.read(self._read_fd, _CHUNK))
        except BlockingIOError:
            pass
        except OSError as error:
            raise StreamEnded from error

    def _receive(self, data: bytes) -> None:
        if not data:
            raise StreamEnded
        if not self._is_docker:
            self._frames += data
            return
        self._packets += data
        while len(self._packets) >= _DOCKER_HEAD.size:
            output, length = _DOCKER_HEAD.unpack_from(self._packets)
            end = _DOCKER_HEAD.size + length
            if len(self._packets) < end:
                return
            content = self._packets[_DOCKER_HEAD.size : end]
            del self._packets[:end]
            if output == _STDOUT:
                self._frames += content
            else:
                self.stray = (self.stray + bytes(content))[-4096:]

    def _parsed(self) -> tuple[bytes, bytes] | None:
        if len(self._frames) < _FRAME_HEAD.size:
            return None
        kind, length = _FRAME_HEAD.unpack_from(self._frames)
        end = _FRAME_HEAD.size + length
        if len(self._frames) < end:
            return None
        content = bytes(self._frames[_FRAME_HEAD.size : end])
        del self._frames[:end]
        return kind, content
