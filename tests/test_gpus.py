"""How GPUs are asked for and shared out, on machines that have them or not."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli import gpus
from gemma4cli.errors import UsageError
from gemma4cli.gpus import Gpus, Place
from gemma4cli.overrides import Overrides, build

EIGHT = tuple(map(str, range(8)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2", Gpus(2)),
        ("all", Gpus()),
        ("0,2", Gpus(numbers=(0, 2))),
        (" 3 , 1 ", Gpus(numbers=(3, 1))),
        ("0,", Gpus(numbers=(0,))),
        ("0,1,0,1", Gpus(numbers=(0, 1, 0, 1))),
    ],
)
def test_the_forms(text: str, found: Gpus) -> None:
    assert gpus.parse(text) == found
    assert gpus.parse(str(found) + ("," if len(found.numbers) == 1 else "")) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "leaves nothing"),
        ("1,0,1", "more often than others"),
        *((text, "not possible") for text in ("", "-1", "two", "0,,1", ",", "0-3")),
    ],
)
def test_what_is_no_form(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        build("caption", Overrides(gpus=text))
    assert "--gpus" in str(refusal.value)
    assert refusal.value.hint


@given(count=st.integers(1, 8), each=st.integers(1, 8))
def test_every_gpu_goes_to_one_engine(count: int, each: int) -> None:
    if count % each:
        with pytest.raises(UsageError, match="do not divide into engines"):
            gpus.places(Gpus(count), each, EIGHT)
        return
    groups = [place.environment["CUDA_VISIBLE_DEVICES"].split(",") for place in gpus.places(Gpus(count), each, EIGHT)]
    assert [gpu for group in groups for gpu in group] == list(EIGHT[:count])
    assert {len(group) for group in groups} == {each}


@given(count=st.integers(1, 16), cores=st.integers(1, 16))
def test_without_gpus_engines_share_the_cores(count: int, cores: int) -> None:
    if count > cores:
        with pytest.raises(UsageError, match=f"which has {cores} cores"):
            gpus.places(Gpus(count), 1, None, range(cores))
        return
    shares = [place.cores for place in gpus.places(Gpus(count), 1, None, range(cores))]
    taken = [core for share in shares for core in share or ()]
    assert len(set(taken)) == len(taken) > cores - count
    assert len({len(share or ()) for share in shares}) == 1


@given(engines=st.integers(1, 3), each=st.integers(1, 4), cores=st.integers(1, 12))
def test_without_gpus_each_process_of_an_engine_has_cores_of_its_own(engines: int, each: int, cores: int) -> None:
    for asked in (Gpus(engines * each), *([None] if engines == 1 else [])):
        if cores < engines * each:
            with pytest.raises(UsageError):
                gpus.places(asked, each, None, range(cores))
            continue
        places = gpus.places(asked, each, None, range(cores))
        assert len(places) == engines
        bound = [place.environment.get("VLLM_CPU_OMP_THREADS_BIND", "") for place in places]
        assert all(text.count("|") == each - 1 for text in bound)
        if each > 1:
            taken = [int(core) for text in bound for core in text.replace("|", ",").split(",")]
            assert len(set(taken)) == len(taken)
            assert set(taken) <= set(range(cores))
        for place, text in zip(places, bound, strict=True):
            assert place.cores is None or not text or set(map(int, re.split("[|,]", text))) <= set(place.cores)


def test_what_the_user_binds_stays_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    assert gpus.places(None, 2, None, range(4)) == [Place("engine")]


def test_names_of_the_environment_stay_names() -> None:
    devices = ("4", "GPU-aa", "MIG-bb")
    one, two = gpus.places(Gpus(numbers=(2, 0)), 1, devices)
    assert (one.name, one.environment["CUDA_VISIBLE_DEVICES"]) == ("GPU MIG-bb", "MIG-bb")
    assert two.environment["CUDA_VISIBLE_DEVICES"] == "4"
    (both,) = gpus.places(Gpus(2), 2, devices)
    assert (both.name, both.environment["CUDA_VISIBLE_DEVICES"]) == ("GPUs 4,GPU-aa", "4,GPU-aa")


@pytest.mark.parametrize(
    ("asked", "each", "devices", "said"),
    [
        (Gpus(3), 1, ("0", "1"), "asks for 3 GPUs, and there are 2"),
        (Gpus(numbers=(0, 2)), 1, ("0", "1"), "asks for GPU 2, and there are 2"),
        (Gpus(2), 1, ("0",), "asks for 2 GPUs, and there is 1"),
        (Gpus(), 2, ("0", "1", "2"), "comes to 3, which do not divide into engines of 2"),
        (Gpus(1), 1, (), "no NVIDIA GPU"),
        (None, 4, ("0", "1"), "an engine of 4 GPUs does not fit: there are 2"),
        (Gpus(), 1, None, "runs on the CPU here"),
        (Gpus(numbers=(0, 1)), 1, None, "runs on the CPU here"),
        (Gpus(3), 2, None, "does not divide into engines of 2"),
        (Gpus(numbers=(0, 0)), 2, ("0", "1"), "names GPUs several times, and an engine takes 2 of them"),
    ],
)
def test_what_is_not_there_is_refused(
    asked: Gpus | None, each: int, devices: tuple[str, ...] | None, said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refusal:
        gpus.places(asked, each, devices, range(4))
    assert refusal.value.hint


@given(count=st.integers(1, 4), on_one=st.integers(2, 4), seed=st.randoms(use_true_random=False))
def test_engines_on_one_gpu_start_one_after_another(count: int, on_one: int, seed: Random) -> None:
    numbers = [*range(count)] * on_one
    seed.shuffle(numbers)
    asked = gpus.parse(",".join(map(str, numbers)))
    assert asked.engines_on_one == on_one
    places = gpus.places(asked, 1, EIGHT)
    assert len({place.name for place in places}) == len(places) == count * on_one
    seen: set[str] = set()
    for i, place in enumerate(places):
        device = place.environment["CUDA_VISIBLE_DEVICES"]
        before = [j for j in range(i) if places[j].environment["CUDA_VISIBLE_DEVICES"] == device]
        assert place.after == (before[-1] if before else 0)
        seen.add(device)
    assert seen == set(EIGHT[:count])


def test_one_engine_is_left_where_it_is() -> None:
    assert gpus.places(None, 2, EIGHT) == gpus.places(None, 1, None, range(4)) == [Place("engine")]


@pytest.mark.parametrize(
    ("named", "found"),
    [(None, ("0", "1", "2", "3")), ("2,3", ("2", "3")), ("GPU-a, 1", ("GPU-a", "1")), ("", ()), ("0,-1,2", ("0",))],
)
def test_the_environment_hides_gpus(monkeypatch: pytest.MonkeyPatch, named: str | None, found: tuple[str, ...]) -> None:
    monkeypatch.setattr(gpus, "_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpus.visible() == found


def test_parallel_flags_say_what_an_engine_takes() -> None:
    run = build("caption", Overrides(gpus="8", tensor_parallel=2, pipeline_parallel=2))
    assert (run.gpus_per_engine, run.engines) == (4, 2)
    assert build("caption", Overrides()).engines == 1
