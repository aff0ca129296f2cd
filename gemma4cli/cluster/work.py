"""What every stage knows of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gemma4cli import __version__, shards
from gemma4cli.config import RunConfig
from gemma4cli.errors import JobError
from gemma4cli.models import Model
from gemma4cli.outputs import Output
from gemma4cli.pending import Resume
from gemma4cli.shards import Shard

Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Work:
    """A run in all that its tasks and actors, on any machine, need of it. Travels pickled.

    columns: carried from the input, with its names.  answers: names of the columns of typed answers.
    of, total: the division into shards.  part: the number that the run's parts have; those of earlier runs are lower.
    folder: the working folder of the command, in which relative paths of the input are meant.
    """

    config: RunConfig
    model: Model
    place: Output
    schema: pa.Schema
    columns: pa.Schema
    answers: tuple[str, ...]
    fingerprint: Mapping[str, Any]
    resume: Resume
    of: int
    total: int
    part: int
    folder: str
    version: str = __version__

    def arrive(self) -> None:
        """To be called where the work is done, before anything else.

        Raises:
            JobError: this machine has another version, or not the folder that the command was given in.
        """
        if self.version != __version__:
            raise JobError(
                f"a machine of the cluster has gemma4cli {__version__}, and the command is {self.version}",
                "install the same version everywhere",
            )
        try:
            os.chdir(self.folder)
        except OSError as error:
            message = f"a machine of the cluster cannot enter {self.folder}: {error.strerror or error}"
            raise JobError(message, "all machines need the same folders: a shared file system") from error

    def shard(self, number: int) -> Shard:
        return shards.cut(number, self.of, self.total)

    def place_of(self, number: int) -> Output:
        return shards.place_of(self.place, self.shard(number).name)

    @cached_property
    def stops(self) -> Ints:
        """Where each shard ends, as row_index."""
        return np.array([self.shard(number).stop for number in range(self.of)])

    def numbers(self, row_index: Ints) -> Ints:
        """The shards that rows belong to."""
        return np.searchsorted(self.stops, row_index, side="right")


def parts_folder(place: Output) -> Path:
    """Where a shard's new parts go; made if it is not there."""
    place.parts.mkdir(parents=True, exist_ok=True)
    place.state.mkdir(exist_ok=True)
    return place.parts
