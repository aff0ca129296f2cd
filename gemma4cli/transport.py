"""Engine inputs from the processes that make them to the one that submits them.

What is large in them goes through memory that both map, and not through the pipe: 4 MB a picture, 31 MB a video of 32
frames. The memory has no name (`memfd_create`), and its descriptor travels over a socket, so that it is gone with the
last process that holds it, however that one ends, and no limit on /dev/shm counts.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LARGE = 1 << 16  # bytes of a buffer from which on it is worth a place of its own
_ALIGNED = 64
_STAMP = struct.Struct("=QQ")  # process, number

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_size_t)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Parcel:
    """An object on its way: all but its large buffers, whose lengths in bytes stand in `sizes`.

    process, number: under which their descriptor is sent; without any there is none.
    """

    pickled: bytes
    sizes: tuple[int, ...] = ()
    process: int = 0
    number: int = 0


class Outbox:
    """The sender's end: one object at a time."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._numbers = itertools.count(1)

    def send(self, value: Any) -> Parcel:
        """Sends the large buffers of an object ahead; what comes back goes another way.

        Raises OSError where there is no memory for them.
        """
        large: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < LARGE:
                return True
            large.append(raw)
            return False

        stream = io.BytesIO()
        _Pickler(stream, 5, buffer_callback=keep).dump(value)
        sizes = tuple(raw.nbytes for raw in large)
        if not large:
            return Parcel(stream.getvalue())
        parcel = Parcel(stream.getvalue(), sizes, os.getpid(), next(self._numbers))
        descriptor = os.memfd_create("gemma4")
        try:
            os.ftruncate(descriptor, _starts(sizes)[-1])
            for raw, start in zip(large, _starts(sizes), strict=False):
                done = 0
                while done < raw.nbytes:
                    done += os.pwrite(descriptor, raw[done:], start + done)
            socket.send_fds(self._line, [_STAMP.pack(parcel.process, parcel.number)], [descriptor])
        finally:
            os.close(descriptor)
        return parcel


class Inbox:
    """The receiver's end. `line` is what the senders get; all of them may share it."""

    def __init__(self) -> None:
        self._near, self.line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        self._came: dict[tuple[int, int], int] = {}  # descriptors
        self._lock = threading.Lock()

    def open(self, parcel: Parcel) -> Any:
        """The object. Its large buffers are the shared memory itself, which goes when they do.

        Raises OSError where the process may not hold any more memory or files.
        """
        if not parcel.sizes:
            return pickle.loads(parcel.pickled)
        with self._lock:
            descriptor = self._descriptor(parcel.process, parcel.number)
        starts = _starts(parcel.sizes)
        try:
            shared = _mapped(descriptor, starts[-1])
        finally:
            os.close(descriptor)
        buffers = [shared[start : start + size] for start, size in zip(starts, parcel.sizes, strict=False)]
        return pickle.loads(parcel.pickled, buffers=buffers)

    def close(self) -> None:
        with self._lock:
            self._receive()
            for descriptor in self._came.values():
                os.close(descriptor)
            self._came.clear()
            self._near.close()
            self.line.close()

    def _descriptor(self, process: int, number: int) -> int:
        if (process, number) not in self._came:
            self._receive()
        for key in [key for key in self._came if key[0] == process and key[1] < number]:
            os.close(self._came.pop(key))  # its row came to nothing
        try:
            return self._came.pop((process, number))
        except KeyError:
            raise OSError("its shared memory did not arrive") from None

    def _receive(self) -> None:
        """Takes in what has been sent. Descriptors are sent before the parcels that name them."""
        while True:
            try:
                stamp, descriptors, _, _ = socket.recv_fds(self._near, _STAMP.size, 1)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                self._came[_STAMP.unpack(stamp)] = descriptor


class _Pickler(pickle.Pickler):
    """Leaves the storage of tensors in place, as pickle does by itself for numpy's arrays."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.device.type != "cpu" or not value.nbytes:
            return NotImplemented
        flat = value.detach().contiguous().view(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(flat), value.dtype, tuple(value.shape))


def _mapped(descriptor: int, size: int) -> memoryview:
    """Shared memory, until the view is gone. Python's own `mmap` would keep a descriptor open for each row."""
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    region = (ctypes.c_char * size).from_address(address)
    weakref.finalize(region, _libc.munmap, address, size).atexit = False  # then threads may still read it
    return memoryview(region).cast("B")


def _tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where each buffer begins, and where the last one ends."""
    return list(itertools.accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0))
