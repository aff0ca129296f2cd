"""A small Gemma 4 that really sees, hears and watches: the package's own test instrument.

The checkpoint in this folder has the architecture, chat template, special tokens and processor of the published
E models and fewer than three million parameters. It describes drawn scenes, transcribes spoken digits and says
what happens in short drawn videos, and nothing else: it exists so that tests and the demo can check answers, not
only shapes. Its model card says how it was trained and what it was measured to do.
"""

from pathlib import Path

_HERE = Path(__file__).parent

CHECKPOINT: Path = _HERE / "checkpoint"
"""Folder to give to any loader of Gemma 4 checkpoints."""

CLIPS: Path = _HERE / "clips"
"""Folder of short spoken clips with `clips.jsonl`: one object a line, `file` and `transcript`."""
