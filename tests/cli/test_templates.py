"""Prompts that hold columns, through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ANNOTATE = ("annotate", "rows.jsonl", "--engine", "fake")


@pytest.fixture
def rows(tmp_path: Path, photos: Path):
    def write(*brands: object) -> None:
        records = [
            {"id": str(i), "image": str(photos / "a.jpg"), "brand": brand, "odd name": i}
            for i, brand in enumerate(brands)
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, records)))

    return write


def texts(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


def test_the_model_is_asked_the_prompt_of_its_row(gemma4, rows) -> None:
    rows("Acme", "{{ price }}")
    found = texts(gemma4(*ANNOTATE, "-p", "Is it {{ brand }}, or {{ row['odd name'] }}?", "-o", "-"))
    assert found[0] == texts(gemma4(*ANNOTATE, "-p", "Is it Acme, or 0?", "--limit", "1", "-o", "-"))[0]
    verbatim = "{% raw %}Is it {{ price }}, or 1?{% endraw %}"
    assert found[1] == texts(gemma4(*ANNOTATE, "-p", verbatim, "-o", "-"))[1]
    system = texts(gemma4(*ANNOTATE, "-p", "Is it?", "--system", "You sell {{ brand }}.", "-o", "-"))
    assert system[0] == texts(gemma4(*ANNOTATE, "-p", "Is it?", "--system", "You sell Acme.", "-o", "-"))[0]


def test_a_rows_own_prompt_is_no_template(gemma4, rows) -> None:
    rows("What is {{ brand }}?", "{% for %}")
    done = gemma4(*ANNOTATE, "--prompt-column", "brand", "-o", "-")
    assert len(set(texts(done))) == 2


def test_a_row_that_the_prompt_cannot_be_filled_in_for_fails(gemma4, rows) -> None:
    rows("Acme", None)
    done = gemma4(*ANNOTATE, "-p", "Is it {{ brand }}?", "-o", "-")
    assert done.returncode == 3
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["status"] == "ok"
    assert (second["error_stage"], second["error_type"]) == ("parse", "prompt_template")
    assert "null" in second["error_message"]
    assert "1 parse prompt_template" in gemma4(*ANNOTATE, "-p", "Is it {{ brand }}?", "--dry-run").stdout
    assert gemma4(*ANNOTATE, "-p", "Is it {{ brand or 'any' }}?", "-o", "-").returncode == 0


def test_a_column_that_the_prompt_names_belongs_to_its_row(gemma4, rows) -> None:
    command = (*ANNOTATE, "-p", "Is it {{ brand }}?", "-o", "out")
    rows("Acme", "Brix")
    assert gemma4(*command).returncode == 0
    rows("Acme", "Corp")
    done = gemma4(*command)
    assert (done.returncode, "1 row of the input is not what it was: 1" in done.stderr) == (2, True)
    assert "1 of 1 rows ok" in gemma4(*command, "--new-only").stderr
    other = (*ANNOTATE, "-p", "Is it {{ row['odd name'] }}?", "-o", "other")
    assert gemma4(*other).returncode == 0
    rows("Acme", "Brix")
    assert "nothing is left to do" in gemma4(*other).stderr
    assert "--prompt was" in gemma4(*ANNOTATE, "-p", "Is it {{ brand }} now?", "-o", "out").stderr


def test_rows_that_differ_in_what_the_prompt_names_are_no_duplicates(gemma4, rows, tmp_path: Path) -> None:
    rows("Acme", "Brix", "Acme")
    done = gemma4(*ANNOTATE, "-p", "Is it {{ brand }}?", "--dedupe", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["duplicate_of"] for row in found] == [None, None, 0]


def test_shares_of_a_job_and_what_is_known_go_by_columns_too(gemma4, rows) -> None:
    rows("Acme", "Brix", "Corp", "Dune")
    command = (*ANNOTATE, "-p", "Is it {{ brand }}?")
    whole = texts(gemma4(*command, "-o", "-"))
    for share in ("0/2", "1/2"):
        assert gemma4(*command, "--shard", share, "-o", "out").returncode == 0
    assert gemma4("merge", "out").returncode == 0
    rows("Acme", "Brix", "Other", "Dune")
    done = gemma4(*command, "--known", "out", "-o", "-")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["2"]
    assert len(set(whole)) == 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-p", "Is it {{ bran }}?"], "Did you mean brand?"),
        (["-p", "Is it {{ brand?"], "--prompt is no template"),
        (["-p", "Is it?", "--system", "{% if %}"], "--system is no template"),
    ],
)
def test_what_cannot_be_is_refused_at_once(refused, rows, flags: list[str], said: str) -> None:
    rows("Acme")
    assert said in refused(*ANNOTATE, *flags)


def test_files_have_no_columns_but_their_id(gemma4, photos: Path) -> None:
    done = gemma4("annotate", photos, "--engine", "fake", "-p", "Is it {{ brand }}?")
    assert (done.returncode, "Files and folders have none but id" in done.stderr) == (2, True)
    assert gemma4("annotate", photos, "--engine", "fake", "-p", "Is this {{ id }}?", "-o", "-").returncode == 0


def test_the_parts_of_a_long_row_have_its_columns_too(gemma4, film, tmp_path: Path) -> None:
    film("film.mp4", 9.0)
    (tmp_path / "rows.jsonl").write_text('{"video": "film.mp4", "brand": "Acme"}')
    done = gemma4(
        "caption", "rows.jsonl", "--engine", "fake", "-p", "Where is {{ brand }}?", "--window", "3", "-o", "-"
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["segments"]) == 3
