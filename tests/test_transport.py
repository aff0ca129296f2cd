"""What is sent arrives, in memory that nobody holds longer than needed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.transport import LARGE, Inbox, Outbox, contents, parts


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.close()


def shared() -> int:
    """Mappings and open descriptors of this process to memory of ours."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:gemma4")
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return mapped + sum("memfd:gemma4" in link for link in links)


def bytes_of(size: int) -> Any:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@given(sizes=st.lists(st.integers(0, 3 * LARGE), max_size=6))
@settings(deadline=None, max_examples=40)
def test_buffers_of_any_sizes_arrive(sizes: list[int]) -> None:
    inbox = Inbox()
    value = {"texts": ["a", "b"] * 3, "data": [bytes_of(size) for size in sizes]}
    came = inbox.claim(Outbox(inbox.line).send(value)).open()
    assert came["texts"] == value["texts"]
    assert all(np.array_equal(one, other) for one, other in zip(came["data"], value["data"], strict=True))
    del came
    inbox.close()
    assert shared() == 0


def test_the_large_ones_do_not_go_through_the_pipe(inbox: Inbox) -> None:
    parcel = Outbox(inbox.line).send([bytes_of(50 * LARGE), bytes_of(100), bytes_of(LARGE)])
    assert len(parcel.pickled) < LARGE
    assert parcel.sizes == (50 * LARGE, LARGE)
    assert Outbox(inbox.line).send(["small"]).sizes == ()


def test_tensors_arrive_whatever_their_type_and_strides(inbox: Inbox) -> None:
    torch = pytest.importorskip("torch")
    value = [
        torch.arange(LARGE, dtype=torch.int64),
        torch.rand(300, 400).to(torch.bfloat16),
        torch.rand(300, 400).T,
        torch.zeros(1, 50, 2, dtype=torch.int64).expand(900, -1, -1),
        torch.arange(5) > 2,
        torch.tensor(3),
        torch.empty(0, 4),
    ]
    came = inbox.claim(Outbox(inbox.line).send(value)).open()
    for one, other in zip(came, value, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    came[0][0] = 7  # it is the receiver's own


def test_memory_goes_with_the_last_that_is_in_it(inbox: Inbox) -> None:
    outbox = Outbox(inbox.line)
    first, second = inbox.claim(outbox.send([bytes_of(LARGE), bytes_of(LARGE)])).open()
    assert shared() == 1
    del first
    assert shared() == 1
    assert second.sum() > 0
    del second
    assert shared() == 0


def test_parts_of_what_is_not_opened_share_its_memory(inbox: Inbox) -> None:
    shown = bytes_of(2 * LARGE)
    whole = inbox.claim(Outbox(inbox.line).send(((shown, "one"), (shown, "two"))))
    first, second = parts(whole, 2)
    del whole
    assert shared() == 1
    for part, text in ((first, "one"), (second, "two")):
        data, said = contents(part)
        assert said == text
        assert np.array_equal(data, shown)
    del part, data, first
    assert shared() == 1
    del second
    assert shared() == 0
    assert parts(("a", "b"), 2) == ("a", "b")
    assert contents("a") == "a"


def test_what_was_sent_before_and_never_asked_for_is_let_go(inbox: Inbox) -> None:
    outbox = Outbox(inbox.line)
    lost, kept = (outbox.send(bytes_of(LARGE)) for _ in range(2))
    assert np.array_equal(inbox.claim(kept).open(), bytes_of(LARGE))
    assert shared() == 0
    with pytest.raises(OSError, match="did not arrive"):
        inbox.claim(lost)


def test_closing_lets_go_of_everything() -> None:
    inbox = Inbox()
    Outbox(inbox.line).send(bytes_of(LARGE))
    inbox.close()
    assert shared() == 0


def _send_and_wait(line: Any, results: Any, release: Any) -> None:
    results.send(Outbox(line).send(bytes_of(5 * LARGE)))
    release.recv()


def test_a_sender_that_is_killed_takes_nothing_back_and_leaves_nothing(inbox: Inbox) -> None:
    context = multiprocessing.get_context("forkserver")
    results, far = context.Pipe()
    release, held = context.Pipe()
    sender = context.Process(target=_send_and_wait, args=(inbox.line, far, held))
    sender.start()
    parcel = results.recv()
    assert sender.pid is not None
    os.kill(sender.pid, signal.SIGKILL)
    sender.join()
    release.close()
    came = inbox.claim(parcel).open()
    assert np.array_equal(came, bytes_of(5 * LARGE))
    del came
    assert shared() == 0
    with pytest.raises(OSError, match="did not arrive"):
        inbox.claim(replace(parcel, number=parcel.number + 1))
