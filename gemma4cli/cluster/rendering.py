"""The second stage: rows made ready for the engine, on the CPUs of any machine."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa

from gemma4cli.cluster.work import Work
from gemma4cli.pool import RenderPool
from gemma4cli.records import Item, Rendered, Split, Unrendered
from gemma4cli.render import RenderJob
from gemma4cli.transport import contents

Outcome = Rendered | Unrendered | Split
BLOCK_BYTES = 64 << 20  # of rendered rows that go on together; a video of 32 frames is 31 MB
_TEND_S = 1.0


class Render:
    """An actor with a render pool, whose processes may die of a row as they may on one machine.

    job: a pickled RenderJob, made where an engine can be configured.  cores: how many processes.
    """

    def __init__(self, work: Work, job: bytes, cores: int) -> None:
        work.arrive()
        found = pickle.loads(job)
        assert isinstance(found, RenderJob)
        self._open: dict[int, Future[Outcome]] = {}
        self._pool = RenderPool(found, work.config.limits.row_timeout_s, self._deliver, workers=cores)

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """The rows with what came of rendering them: a column `outcome`, empty for rows that cannot be read at all.

        Fewer rows at a time where they are large.
        """
        items: list[Item] = [pickle.loads(value.as_buffer())[0] for value in batch["item"]]
        waiting = {}
        for item in items:
            if item.failure is None:
                waiting[item.row_index] = self._open[item.row_index] = Future()
                self._pool.submit(item)
        start, outcomes, nbytes = 0, list[bytes](), 0
        for stop, item in enumerate(items, 1):
            found = waiting.pop(item.row_index, None)
            outcomes.append(b"" if found is None else pickle.dumps(self._waited(found), 5))
            nbytes += len(outcomes[-1])
            if nbytes >= BLOCK_BYTES or stop == len(items):
                yield batch.slice(start, stop - start).append_column("outcome", pa.array(outcomes, pa.large_binary()))
                start, outcomes, nbytes = stop, [], 0

    def _waited(self, found: Future[Outcome]) -> Outcome:
        while True:
            try:
                return found.result(_TEND_S)
            except TimeoutError:
                self._pool.tend()

    def _deliver(self, outcome: Outcome) -> None:
        if isinstance(outcome, Rendered):
            outcome = replace(outcome, payload=contents(outcome.payload))
        self._open.pop(outcome.row_index).set_result(outcome)
