"""The token arithmetic against the processors that it stands for."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli import gemma

sides = st.one_of(st.integers(1, 8000), st.integers(1, 100), st.integers(8000, 60_000))
budgets = st.sampled_from(gemma.BUDGETS)


@pytest.fixture(scope="module")
def reference_size():
    module = pytest.importorskip("transformers.models.gemma4.image_processing_gemma4")

    def size(width: int, height: int, budget: int) -> tuple[int, int]:
        rows, columns = module.get_aspect_ratio_preserving_size(height, width, 16, budget * 9, 3)
        return columns, rows

    return size


def test_image_size_is_the_processors_for_thousands_of_sizes(reference_size) -> None:
    draw = random.Random(4)
    sizes = [(draw.randint(1, limit), draw.randint(1, limit)) for limit in (20, 300, 5000, 40_000) for _ in range(1500)]
    sizes += [(48 * a, 48 * b) for a in range(1, 30) for b in range(1, 30)]
    sizes += [(n * budget, n) for budget in gemma.BUDGETS for n in range(1, 80)]
    sizes += [(n, n * budget) for budget in gemma.BUDGETS for n in range(1, 80)]
    for width, height in sizes:
        for budget in gemma.BUDGETS:
            assert gemma.image_size(width, height, budget) == reference_size(width, height, budget), (width, height)


@pytest.mark.parametrize("size", [(640, 480), (1, 1), (3, 900), (900, 3), (161, 121), (17, 1190)])
@pytest.mark.parametrize("budget", gemma.BUDGETS)
def test_image_tokens_are_those_the_processor_puts_out(size: tuple[int, int], budget: int) -> None:
    module = pytest.importorskip("transformers.models.gemma4.image_processing_gemma4")
    pixels = np.zeros((3, size[1], size[0]), np.uint8)
    features = module.Gemma4ImageProcessor(max_soft_tokens=budget)(pixels, input_data_format="channels_first")
    tokens = gemma.image_tokens(*size, budget)
    assert features["num_soft_tokens_per_image"] == [tokens]
    assert int((np.asarray(features["image_position_ids"][0])[:, 0] >= 0).sum()) == tokens * 9


def test_known_image_tokens() -> None:
    assert [gemma.image_tokens(640, 480, budget) for budget in (70, 280, 1120)] == [63, 266, 1064]
    assert [gemma.image_tokens(1920, 1080, budget) for budget in (70, 280, 1120)] == [66, 264, 1100]
    assert [gemma.image_tokens(3, 900, budget) for budget in (70, 280, 1120)] == [70, 280, 579]


@given(sides, sides, budgets)
def test_image_sizes_are_whole_tokens_within_the_budget(width: int, height: int, budget: int) -> None:
    resized = gemma.image_size(width, height, budget)
    assert all(side > 0 and side % 48 == 0 for side in resized)
    assert 1 <= gemma.image_tokens(width, height, budget) <= budget
    assert gemma.image_size(height, width, budget) == resized[::-1]


@pytest.mark.parametrize("budget", [0, 69, 281, -70])
def test_other_budgets_are_refused(budget: int) -> None:
    with pytest.raises(ValueError, match="280"):
        gemma.image_size(10, 10, budget)


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="0x10"):
        gemma.image_size(0, 10, 280)


def test_audio_tokens_are_those_the_processor_puts_out() -> None:
    module = pytest.importorskip("transformers.models.gemma4.feature_extraction_gemma4")
    extractor = module.Gemma4AudioFeatureExtractor()
    draw = random.Random(4)
    lengths = [*range(155, 170), *range(318, 324), *range(480, 484), *range(640, 2600, 31), 16_000]
    lengths += [draw.randint(161, 40_000) for _ in range(60)] + [479_839, 479_840, 479_841, 480_000, 480_001, 600_000]
    for length in lengths:
        mask = extractor([np.zeros(length, np.float32)])["input_features_mask"][0]
        for _ in range(2):  # as the processor's placeholder count does it
            mask = mask[::2][: (len(mask) - 1) // 2 + 1]
        assert gemma.audio_tokens(length) == int(mask.sum()), length


def test_audio_tokens_are_vllms_count_for_thousands_of_lengths() -> None:
    def count(samples: int) -> int:  # Gemma4ProcessingInfo._compute_audio_num_tokens in vLLM 0.32
        frames = (samples + 160 - 321) // 160 + 1
        if frames <= 0:
            return 0
        for _ in range(2):
            frames = (frames + 2 - 3) // 2 + 1
        return min(frames, 750)

    lengths = [*range(3000), *range(470_000, 490_000, 7), *range(0, 2_000_000, 997)]
    assert [gemma.audio_tokens(n) for n in lengths] == [count(n) for n in lengths]


def test_unified_audio_tokens_are_those_the_processor_puts_out() -> None:
    module = pytest.importorskip("transformers.models.gemma4_unified.feature_extraction_gemma4_unified")
    extractor = module.Gemma4UnifiedAudioFeatureExtractor()
    for length in (1, 639, 640, 641, 1280, 15_999, 480_000, 480_001):
        mask = extractor(np.zeros(length, np.float32), return_tensors="np")["input_features_mask"][0]
        assert gemma.unified_audio_tokens(length) == int(mask.sum())


@given(st.integers(33, 200_000), st.integers(1, 32))
def test_even_frames_are_the_processors_choice(total: int, count: int) -> None:
    expected = np.arange(count, dtype=int) * total // count  # transformers.video_utils.default_sample_indices_fn
    assert gemma.even_frames(total, count) == tuple(expected.tolist())


@given(st.integers(0, 32))
def test_short_clips_are_taken_whole(total: int) -> None:
    assert gemma.even_frames(total) == tuple(range(total))


def test_even_frames_against_the_library() -> None:
    video_utils = pytest.importorskip("transformers.video_utils")
    for total in (32, 33, 63, 64, 65, 100, 241, 17_982):
        metadata = video_utils.VideoMetadata(total_num_frames=total, fps=25.0)
        chosen = video_utils.default_sample_indices_fn(metadata, num_frames=32)
        assert gemma.even_frames(total) == tuple(chosen.tolist())


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "00:00"), (59.999, "00:59"), (60, "01:00"), (3599.5, "59:59"), (6000, "100:00"), (35_999, "599:59")],
)
def test_timestamps_are_cut_to_whole_seconds(seconds: float, written: str) -> None:
    assert gemma.timestamp(seconds) == written


def test_a_maximal_video_fits_the_engines_reckoning() -> None:
    # vLLM reserves 32 x (70 + 2 + 6); frames that fill their budget are rare, and a timestamp is 6 or 7 tokens.
    assert gemma.video_frame_tokens(1920, 1080) == 66
    assert gemma.video_prompt_tokens(1920, 1080, 32) <= 32 * (70 + 2 + 6)


def test_importing_costs_no_array_library() -> None:
    code = "import sys, gemma4cli.gemma, gemma4cli.media; print({'numpy', 'torch', 'PIL', 'av'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_strips_that_the_engine_counts_otherwise_agree_once_they_are_resized() -> None:
    strips = [(17, 1190, 70), (2380, 17, 140), (4550, 65, 70), (17, 4760, 280)]
    for width, height, budget in strips:
        assert not gemma.engine_agrees(width, height, budget)
        assert gemma.engine_agrees(*gemma.image_size(width, height, budget), budget)


@given(sides, sides, budgets)
def test_nearly_all_sizes_agree_and_all_do_once_they_are_resized(width: int, height: int, budget: int) -> None:
    resized = gemma.image_size(width, height, budget)
    if gemma.image_size(*resized, budget) == resized:
        assert gemma.engine_agrees(*resized, budget)
    if max(width, height) < 16 * min(width, height):
        assert gemma.engine_agrees(width, height, budget)


@given(sides, sides, budgets)
def test_auto_enlarges_no_side_of_an_image_where_that_is_possible(width: int, height: int, most: int) -> None:
    budget = gemma.auto_budget(width, height, most)
    assert budget in gemma.BUDGETS
    assert budget <= most

    def fits(each: int) -> bool:
        resized = gemma.image_size(width, height, each)
        return resized[0] <= width and resized[1] <= height

    assert fits(budget) or budget == 70
    assert not any(fits(each) for each in gemma.BUDGETS if budget < each <= most)
    assert budget == gemma.auto_budget(height, width, most)


@given(st.lists(st.tuples(sides, sides), max_size=4), budgets)
def test_images_of_a_row_share_the_largest_of_their_budgets(sizes: list[tuple[int, int]], most: int) -> None:
    each = [gemma.auto_budget(width, height, most) for width, height in sizes]
    assert gemma.row_budget(sizes, most) == (max(each) if each else most)


def test_known_auto_budgets() -> None:
    sizes = [(224, 224), (640, 480), (800, 600), (1024, 768), (1920, 1080), (4000, 3000), (1, 1), (9000, 20)]
    assert [gemma.auto_budget(*size, 1120) for size in sizes] == [70, 140, 140, 280, 560, 1120, 70, 70]
    assert [gemma.auto_budget(*size, 280) for size in sizes] == [70, 140, 140, 280, 280, 280, 70, 70]
    assert [gemma.smaller_budget(budget) for budget in gemma.BUDGETS] == [70, 70, 140, 280, 560]
