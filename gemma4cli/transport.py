"""Engine inputs from the processes that make them, past the one that hands them out, to those of the engines.

What is large in them goes through memory that both ends map, and not through a pipe: 4 MB a picture, 31 MB a video of
32 frames. The memory has no name (`memfd_create`), and its descriptor travels over sockets, so that it is gone with
the last process that holds it, however that one ends, and no limit on /dev/shm counts. The process in the middle
holds descriptors alone, and looks into nothing.
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
from dataclasses import dataclass, replace
from typing import Any

LARGE = 1 << 16  # bytes of a buffer from which on it is worth a place of its own
_ALIGNED = 64
_STAMP = struct.Struct("=QQ")  # process, number
_LENGTH = struct.Struct("=Q")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_size_t)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Parcel:
    """An object on its way: all but its large buffers, whose lengths in bytes stand in `sizes`.

    process, number: under which their descriptor is sent; without any there is none.
    place: which part of the object is meant, where it is several in a row; None is all of it.
    """

    pickled: bytes
    sizes: tuple[int, ...] = ()
    process: int = 0
    number: int = 0
    place: int | None = None


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


class Memory:
    """A descriptor of shared memory, closed when nobody refers to it any more."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class Package:
    """An object that has arrived and is not opened. Its memory stays as long as the package; some need none."""

    parcel: Parcel
    memory: Memory | None = None

    def open(self) -> Any:
        """The object. Its large buffers are the shared memory itself, which goes when they and the package have gone.

        Raises OSError where the process may not hold any more memory.
        """
        if self.memory is None:
            whole = pickle.loads(self.parcel.pickled)
        else:
            starts = _starts(self.parcel.sizes)
            shared = _mapped(self.memory.descriptor, starts[-1])
            buffers = [shared[start : start + size] for start, size in zip(starts, self.parcel.sizes, strict=False)]
            whole = pickle.loads(self.parcel.pickled, buffers=buffers)
        return whole if self.parcel.place is None else whole[self.parcel.place]


def contents(payload: Any) -> Any:
    """What a package holds; anything else is its own contents. Raises OSError, see `Package.open`."""
    return payload.open() if isinstance(payload, Package) else payload


def parts(payload: Any, count: int) -> Sequence[Any]:
    """A payload of so many things in a row as one payload for each; of a package without opening it."""
    if not isinstance(payload, Package):
        return tuple(payload)
    return [replace(payload, parcel=replace(payload.parcel, place=place)) for place in range(count)]


class Inbox:
    """The receiver's end. `line` is what the senders get; all of them may share it."""

    def __init__(self) -> None:
        self._near, self.line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._near.setblocking(False)
        self._came: dict[tuple[int, int], int] = {}  # descriptors
        self._lock = threading.Lock()

    def claim(self, parcel: Parcel) -> Package:
        """The parcel with its descriptor. Raises OSError where that did not arrive."""
        if not parcel.sizes:
            return Package(parcel)
        with self._lock:
            return Package(parcel, Memory(self._descriptor(parcel.process, parcel.number)))

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


class Channel:
    """One end of a socket between two processes: objects in order, each with a descriptor if it has one.

    Any thread may send; one receives.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._sending = threading.Lock()

    def send(self, value: Any, descriptor: int | None = None) -> None:
        """Waits for room. Raises OSError where the other end has gone."""
        data = pickle.dumps(value, 5)
        message = memoryview(_LENGTH.pack(len(data)) + data)
        with self._sending:
            sent = socket.send_fds(self._line, [message], [] if descriptor is None else [descriptor])
            self._line.sendall(message[sent:])

    def receive(self) -> tuple[Any, int | None]:
        """Waits for the next object; its descriptor is the caller's. Raises EOFError or OSError at the end."""
        head, descriptors, _, _ = socket.recv_fds(self._line, _LENGTH.size, 1, socket.MSG_CMSG_CLOEXEC)
        if not head:
            raise EOFError
        head += self._exactly(_LENGTH.size - len(head))
        return pickle.loads(self._exactly(*_LENGTH.unpack(head))), descriptors[0] if descriptors else None

    def close(self) -> None:
        self._line.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        done = 0
        while done < size:
            came = self._line.recv_into(memoryview(data)[done:])
            if not came:
                raise EOFError
            done += came
        return bytes(data)


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
