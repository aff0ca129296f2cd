"""An engine in a process of its own: rows reach it unopened, and it goes when it is told to or its owner does."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemma4cli.engine.child import Child
from gemma4cli.engine.fake import Behaviour, FakeEngine, _Answer
from gemma4cli.engine.process import EngineProcess
from gemma4cli.errors import EngineError
from gemma4cli.gpus import Place
from gemma4cli.records import Generation, MediaFacts, Rendered, Sampling, Tokens
from gemma4cli.transport import LARGE, Inbox, Outbox

SAMPLING = Sampling(8, 0.0, 1.0, 0, 0)
PLACE = Place("engine 0")


def row(index: int, payload: Any) -> Rendered:
    return Rendered(index, payload, 0, Tokens(5), MediaFacts(), "", 0.0, 0.0)


@pytest.fixture
def events() -> queue.SimpleQueue[Generation | EngineError]:
    return queue.SimpleQueue()


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    engine = EngineProcess(FakeEngine(Behaviour(die_on="poison", stall_on="silence")), PLACE)
    yield engine
    engine.close()


def test_rows_reach_it_as_packages_and_as_they_are(engine: EngineProcess, events: Any) -> None:
    inbox = Inbox()
    outbox = Outbox(inbox.line)
    engine.start(events.put)
    for i in range(200):
        answer = _Answer(f"answer {i} " + "x" * (LARGE if i % 7 == 0 else 0), "", 0)
        payload = inbox.claim(outbox.send(answer)) if i % 2 else answer
        engine.submit(row(i, payload), SAMPLING)
    found = {event.row_index: event.text for event in (events.get(timeout=20) for _ in range(200))}
    assert all(found[i].split()[:2] == ["answer", str(i)] for i in range(200))
    assert engine.progress >= 200
    inbox.close()


class Big:
    """Pickles as an answer with its text in a buffer of its own."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _answer_of, (pickle.PickleBuffer(bytearray(self.text.encode())),)


def _answer_of(buffer: Any) -> _Answer:
    return _Answer(bytes(buffer).decode(), "", 0)


def test_shared_memory_goes_on_by_its_descriptor_and_is_let_go(engine: EngineProcess, events: Any) -> None:
    inbox = Inbox()
    outbox = Outbox(inbox.line)
    engine.start(events.put)
    for i in range(50):
        package = inbox.claim(outbox.send(Big(f"{i} " * LARGE)))
        assert package.memory is not None
        engine.submit(row(i, package), SAMPLING)
        del package
    found = {event.row_index: event.text for event in (events.get(timeout=20) for _ in range(50))}
    assert all(found[i].split()[0] == str(i) for i in range(50))
    assert "memfd:gemma4" not in Path("/proc/self/maps").read_text()
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert sum("memfd:gemma4" in link for link in links) == 0
    inbox.close()


def test_it_can_die_and_start_again(engine: EngineProcess, events: Any) -> None:
    engine.start(events.put)
    engine.submit(row(0, _Answer("", "poison", 0)), SAMPLING)
    error = events.get(timeout=20)
    assert isinstance(error, EngineError)
    assert "as --engine-arg die_on asked" in str(error)
    engine.close()
    engine.start(events.put)
    engine.submit(row(1, _Answer("fine", "", 0)), SAMPLING)
    assert events.get(timeout=20).text == "fine"


def test_a_process_that_is_killed_is_an_engine_that_died(engine: EngineProcess, events: Any) -> None:
    engine.start(events.put)
    assert engine._child is not None
    os.kill(engine._child.pid, signal.SIGKILL)
    error = events.get(timeout=20)
    assert isinstance(error, EngineError)
    assert str(error) == "the process 'gemma4 engine 0' was ended by SIGKILL"
    engine.close()
    assert events.empty()


def test_rows_for_a_process_that_takes_none_hold_up_nobody(engine: EngineProcess, events: Any) -> None:
    engine.start(events.put)
    assert engine._child is not None
    os.kill(engine._child.pid, signal.SIGSTOP)
    for i in range(400):
        engine.submit(row(i, _Answer("x" * 10_000, "", 0)), SAMPLING)
    engine.close()
    assert events.empty()


def test_what_is_wrong_with_the_start_is_said(events: Any) -> None:
    engine = EngineProcess(Broken(), PLACE)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="no such device") as refusal:
        engine.start(events.put)
    assert refusal.value.hint == "look for it"
    engine.close()


class Broken:
    def start(self, deliver: Any) -> None:
        raise EngineError("no such device", "look for it")


def test_closing_ends_a_start(events: Any) -> None:
    import threading

    engine = EngineProcess(FakeEngine(Behaviour(start_s=3600)), PLACE, Child(PLACE))
    said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start() -> None:
        try:
            engine.start(events.put)
        except EngineError as error:
            said.put(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    engine.close()
    assert "while it started" in said.get(timeout=20)
    thread.join()


def test_its_environment_and_cores_are_its_own(events: Any) -> None:
    core = min(os.sched_getaffinity(0))
    engine = EngineProcess(FakeEngine(Behaviour()), Place("GPU 3", {"CUDA_VISIBLE_DEVICES": "3"}, (core,)))
    engine.start(events.put)
    assert engine._child is not None
    pid = engine._child.pid
    assert os.sched_getaffinity(pid) == {core}
    assert os.getpgid(pid) == pid
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "gemma4 GPU 3"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    engine.close()
    assert not Path(f"/proc/{pid}").exists()


def test_it_goes_when_its_owner_does() -> None:
    code = (
        "import sys, time\n"
        "from gemma4cli.engine.process import EngineProcess\n"
        "from gemma4cli.engine.fake import Behaviour, FakeEngine\n"
        "from gemma4cli.gpus import Place\n"
        "if __name__ == '__main__':\n"
        "    engine = EngineProcess(FakeEngine(Behaviour()), Place('e'))\n"
        "    engine.start(print)\n"
        "    print(engine._child.pid, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
