"""Videos with their sound and in windows, through the installed command, on the fake engine."""

from __future__ import annotations

import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gemma4cli.tiny.recordings import recording

FAKE = ("--engine", "fake", "-o", "-")


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def talk() -> np.ndarray:
    """Seventy seconds of spoken digits."""
    return recording(1, 70)[0][: 70 * 16_000]


def test_the_sound_of_a_video_is_transcribed_into_its_row(gemma4, film, talk: np.ndarray) -> None:
    films = [film("long.mp4", 70, talk), film("short.mp4", 5, talk[: 5 * 16_000])]
    seen = lines(gemma4("caption", *films, *FAKE, "--with-audio", "--language", "English").stdout)
    alone = lines(gemma4("caption", *films, *FAKE).stdout)
    heard = lines(gemma4("transcribe", *films, *FAKE, "--language", "English").stdout)
    for row, pictures, sound in zip(seen, alone, heard, strict=True):
        assert (row["status"], row["modality"], row["task"]) == ("ok", "video", "caption")
        assert (row["text"], row["frames"]) == (pictures["text"], pictures["frames"])
        assert row["transcript"] == sound["text"]
        for name in ("prompt_tokens", "audio_tokens", "video_tokens", "output_tokens"):
            assert row[name] == pictures[name] + sound[name], name
        assert (row["width"], row["height"], row["duration_s"]) == (96, 64, pictures["duration_s"])
        assert row["bucket"] == "+".join(dict.fromkeys([pictures["bucket"], *sound["bucket"].split("+")]))
        assert [s["transcript"] for s in row["segments"]] == [s["text"] for s in sound["segments"]]
    assert len(seen[0]["segments"]) > 2
    assert [(s["start"], s["end"]) for s in seen[0]["segments"]] == [
        (s["start"], s["end"]) for s in heard[0]["segments"]
    ]


def test_the_part_that_is_meant_is_seen_and_heard(gemma4, film, talk: np.ndarray) -> None:
    part = ("--start", "0:10", "--end", "25")
    path = film("long.mp4", 70, talk)
    (row,) = lines(gemma4("caption", path, *FAKE, "--with-audio", *part).stdout)
    assert row["text"] == lines(gemma4("caption", path, *FAKE, *part).stdout)[0]["text"]
    assert row["transcript"] == lines(gemma4("transcribe", path, *FAKE, *part).stdout)[0]["text"]


def test_videos_without_sound_or_speech_and_pictures(gemma4, film, photos: Path) -> None:
    quiet = film("quiet.mp4", 5, np.zeros(80_000, np.float32))
    inputs = (film("mute.mp4", 5), quiet, photos / "a.jpg")
    mute, silent, picture = lines(gemma4("caption", *inputs, *FAKE, "--with-audio").stdout)
    for row in (mute, silent):
        assert (row["status"], row["transcript"], row["segments"]) == ("ok", "", [])
    assert silent["text"]
    assert (picture["status"], picture["transcript"], picture["segments"]) == ("ok", None, None)
    assert picture["text"] == lines(gemma4("caption", photos / "a.jpg", *FAKE).stdout)[0]["text"]


def test_texts_beside_a_video_do_not_silence_it(gemma4, film, talk: np.ndarray, tmp_path: Path) -> None:
    film("a.mp4", 5, talk[:80_000])
    content = [{"type": "text", "text": "Look."}, {"type": "video_url", "video_url": {"url": "a.mp4"}}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"content": content, "prompt": "Who speaks?"}))
    (row,) = lines(gemma4("caption", "rows.jsonl", "--prompt-column", "prompt", *FAKE, "--with-audio").stdout)
    assert row["transcript"] == lines(gemma4("transcribe", "a.mp4", *FAKE).stdout)[0]["text"]
    (alone,) = lines(gemma4("caption", "rows.jsonl", "--prompt-column", "prompt", *FAKE).stdout)
    assert row["text"] == alone["text"]


def test_windows_have_their_share_of_what_was_said(gemma4, film, talk: np.ndarray) -> None:
    path = film("long.mp4", 70, talk)
    windows = ("--window", "20")
    (row,) = lines(gemma4("caption", path, *FAKE, *windows, "--with-audio").stdout)
    (plain,) = lines(gemma4("caption", path, *FAKE, *windows).stdout)
    assert [s["text"] for s in row["segments"]] == [s["text"] for s in plain["segments"]]
    assert len(row["segments"]) == 4
    assert row["text"] == plain["text"]
    said = " ".join(s["transcript"] for s in row["segments"] if s["transcript"])
    assert said == row["transcript"]
    assert all(s["transcript"] for s in row["segments"][:3])


def test_windows_are_summed_up_on_request(gemma4, film, talk: np.ndarray) -> None:
    path = film("long.mp4", 70, talk)
    (plain,) = lines(gemma4("caption", path, *FAKE, "--window", "20").stdout)
    flags = ("--window", "20", "--summarise")
    (row,) = lines(gemma4("caption", path, *FAKE, *flags).stdout)
    assert row["segments"] == plain["segments"]
    assert row["text"] not in (plain["text"], *(s["text"] for s in row["segments"]))
    assert row["output_tokens"] > plain["output_tokens"]
    assert row["prompt_tokens"] > plain["prompt_tokens"]
    assert row["video_tokens"] == plain["video_tokens"]
    (other,) = lines(gemma4("caption", path, *FAKE, *flags, "--summary-prompt", "In one word?").stdout)
    assert other["segments"] == plain["segments"]
    assert other["text"] != row["text"]
    (short,) = lines(gemma4("caption", path, *FAKE, "--window", "100", "--summarise").stdout)
    assert (short["text"], short["segments"]) == (lines(gemma4("caption", path, *FAKE).stdout)[0]["text"], None)


def test_a_summary_that_fails_fails_its_row_and_retrying_mends_it(gemma4, film, tmp_path: Path) -> None:
    film("long.mp4", 30)
    command = ("caption", "long.mp4", "--engine", "fake", "--window", "10", "--summarise", "-o", "out.parquet")
    done = gemma4(*command, "--engine-arg", "fail_on=parts of one video")
    assert done.returncode == 3
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (row["status"], row["error_message"].partition(":")[0]) == ("failed", "summing up from 0.0 s to 30.0 s")
    assert (row["text"], len(row["segments"])) == (None, 3)
    assert gemma4(*command, "--retry-failed").returncode == 0
    (row,) = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert (row["status"], len(row["segments"])) == ("ok", 3)
    refused = gemma4(*command, "--summary-prompt", "In one word?")
    assert refused.returncode != 0
    assert "--summarise: prompt was" in refused.stderr


def test_videos_in_folders_and_columns_are_heard(gemma4, film, clip: Path, talk: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "talks").mkdir()
    shutil.move(film("a.mp4", 5, talk[: 5 * 16_000]), tmp_path / "talks")
    shutil.copy(clip, tmp_path / "talks" / "b.wav")
    rows = lines(gemma4("transcribe", "talks", *FAKE).stdout)
    assert [(row["id"], row["status"], row["modality"]) for row in rows] == [
        ("a.mp4", "ok", "audio"),
        ("b.wav", "ok", "audio"),
    ]
    (tmp_path / "rows.jsonl").write_text('{"video": "talks/a.mp4"}\n')
    (row,) = lines(gemma4("transcribe", "rows.jsonl", *FAKE).stdout)
    assert (row["status"], row["text"]) == ("ok", rows[0]["text"])


def test_recordings_are_cut_into_shorter_parts_on_request(gemma4, film, talk: np.ndarray) -> None:
    path = film("talk.mp4", 25, talk[: 25 * 16_000])
    assert len(lines(gemma4("transcribe", path, *FAKE).stdout)[0]["segments"]) == 1
    (row,) = lines(gemma4("transcribe", path, *FAKE, "--max-segment", "5").stdout)
    assert len(row["segments"]) > 5
    assert all(s["end"] - s["start"] <= 5.0 for s in row["segments"])


def test_parts_of_a_sound_may_know_what_was_said_before(gemma4, film, talk: np.ndarray) -> None:
    path = film("long.mp4", 70, talk)
    (apart,) = lines(gemma4("transcribe", path, *FAKE).stdout)
    (row,) = lines(gemma4("transcribe", path, *FAKE, "--condition-on-previous-text").stdout)
    times = [(s["start"], s["end"]) for s in apart["segments"]]
    assert [(s["start"], s["end"]) for s in row["segments"]] == times
    assert row["segments"][0]["text"] == apart["segments"][0]["text"]
    assert all(a["text"] != b["text"] for a, b in zip(row["segments"][1:], apart["segments"][1:], strict=True))
    assert row["prompt_tokens"] > apart["prompt_tokens"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["caption", "--summarise"], "--summarise"),
        (["caption", "--window", "9", "--summary-prompt", "Sum up."], "--summary-prompt"),
        (["caption", "--window", "9", "--summarise", "--summary-prompt", " "], "--summary-prompt is empty"),
        (["caption", "--language", "English"], "--language"),
        (["transcribe", "--window", "9"], "--window"),
        (["transcribe", "--max-segment", "31"], "--max-segment 31"),
        (["transcribe", "--with-audio"], "--with-audio"),
        (["annotate", "--prompt", "Hm?", "--with-audio"], "--with-audio"),
    ],
)
def test_what_says_nothing_is_refused(gemma4, film, arguments: list[str], said: str) -> None:
    command, *flags = arguments
    done = gemma4(command, film("a.mp4", 1), *FAKE, *flags)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_model_that_does_not_hear_is_refused_before_it_loads(gemma4, film, tmp_path: Path) -> None:
    from gemma4cli.tiny import CHECKPOINT

    config = json.loads((CHECKPOINT / "config.json").read_text())
    (tmp_path / "deaf").mkdir()
    (tmp_path / "deaf" / "config.json").write_text(json.dumps({**config, "audio_config": None}))
    done = gemma4("caption", film("a.mp4", 1), *FAKE, "--model", "deaf", "--with-audio")
    assert done.returncode == 2
    assert "no audio tower" in done.stderr
    assert "--with-audio" in done.stderr


def test_a_film_from_a_server_is_fetched_once_by_each_reader_and_not_for_each_piece(
    gemma4, film, talk: np.ndarray, tmp_path: Path
) -> None:
    film("long.mp4", 70, talk)
    asked: list[str] = []

    class Files(SimpleHTTPRequestHandler):
        def log_request(self, *_: object) -> None:
            asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        address = f"http://127.0.0.1:{server.server_port}/long.mp4"
        (tmp_path / "films.jsonl").write_text(json.dumps({"video": address}) + "\n")
        flags = (*FAKE, "--with-audio", "--window", "4", "--max-frames", "1")
        readers = ("--fetch-concurrency", "2")
        (row,) = lines(gemma4("caption", "films.jsonl", *flags, *readers, "--allow-private-hosts").stdout)
        server.shutdown()
    (local,) = lines(gemma4("caption", "long.mp4", *flags).stdout)
    assert (row["text"], row["segments"]) == (local["text"], local["segments"])
    assert len(row["segments"]) > 15
    assert 1 <= len(asked) <= 2
