"""An output as a data set on the Hugging Face hub: its rows, and its card."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4cli import card, inspection
from gemma4cli.errors import JobError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.outputs import Format, Output

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_KIND = "dataset"


@dataclass(frozen=True, slots=True)
class Pushed:
    """What came of it.  carded: whether the card was sent; somebody's own README on the hub stays."""

    address: str
    rows: int
    carded: bool


def push(
    output: str,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    api: Any = None,
) -> Pushed:
    """Makes a data set of an output that is done; one that is there gets these rows in the place of its own.

    Args:
        repository: as `owner/name`.
        private: where the repository is made now; one that is there stays what it is.
        revision: a branch, made where it is not there.
        api: a `huggingface_hub.HfApi`; by default one with the user's own token.

    Raises:
        UsageError: there is no such output, it is not done, or the name is none.
        JobError: the hub refused.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"{printable(repository)} is no name of a data set", "Example: gemma4 push out/ owner/name")
    place = inspection.place_of(output)
    report = inspection.report_at(place)
    if report.state != "finished":
        hint = "wait for it" if report.owner else "run its command again, which finishes it"
        raise UsageError(f"{printable(output)} is {report.state}: not all of its rows are there", hint)
    with tempfile.TemporaryDirectory(prefix="gemma4-") as folder:
        try:
            _lay_out(Path(folder), place, repository)
            api = api or _api()
            api.create_repo(repository, repo_type=_KIND, private=private or None, exist_ok=True)
            if revision is not None:
                api.create_branch(repository, branch=revision, repo_type=_KIND, exist_ok=True)
            carded = _may_card(api, repository, revision)
            if not carded:
                (Path(folder) / card.NAME).unlink()
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                repo_type=_KIND,
                revision=revision,
                commit_message=message or f"{report.ok + report.failed + report.skipped:,} rows",
                delete_patterns=["data/*.parquet", "data/*.jsonl"],
            )
        except (JobError, UsageError):
            raise
        except Exception as error:  # of the hub's client, of its transport, of the disk
            reason = printable(" ".join(str(error).split()))[:300] or type(error).__name__
            hint = "hf auth login, or HF_TOKEN, says who you are; run the same command again"
            raise JobError(f"cannot push to {repository}: {reason}", hint) from error
    address = f"https://huggingface.co/datasets/{repository}" + (f"/tree/{revision}" if revision else "")
    return Pushed(address, report.ok + report.failed + report.skipped, carded)


def _lay_out(folder: Path, place: Output, repository: str) -> None:
    """Lays out the repository: its card, and links to the rows."""
    (folder / "data").mkdir()
    if place.format is Format.FOLDER:
        for path in sorted(place.parts.glob("*.parquet")):
            (folder / "data" / path.name).symlink_to(path.absolute())
        own = place.path / card.NAME
        if not card.may_replace(own):  # the user's own says it better
            shutil.copyfile(own, folder / card.NAME)
            return
    else:
        (folder / card.data_files(place)).symlink_to(place.path.absolute())
    (folder / card.NAME).write_text(card.of_output(place, repository.partition("/")[2]), encoding="utf-8")


def _may_card(api: Any, repository: str, revision: str | None) -> bool:
    """Whether the README on the hub is none, or a card that nobody changed."""
    if not api.file_exists(repository, card.NAME, repo_type=_KIND, revision=revision):
        return True
    return card.may_replace(Path(api.hf_hub_download(repository, card.NAME, repo_type=_KIND, revision=revision)))


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()
