"""Pictures come out upright, in 8-bit sRGB, over a ground, or not at all."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from PIL import ImageCms

from gemma4cli import gemma
from gemma4cli.errors import DecodeError
from gemma4cli.media import Image, MediaOptions, load
from gemma4cli.records import Kind, Media

IMAGES = frozenset({Kind.IMAGE})


def decoded(data: bytes, **options: Any) -> Image:
    image = load(Media("", data), IMAGES, MediaOptions(**options))
    assert isinstance(image, Image)
    assert image.pixels.dtype == np.uint8
    assert image.pixels.ndim == 3
    assert image.pixels.shape[2] == 3
    assert image.pixels.flags.c_contiguous
    assert image.pixels.flags.writeable
    return image


def failure(data: bytes, **options: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decoded(data, **options)
    return caught.value


def saved(picture: Pillow.Image, format_: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format_, **options)
    return buffer.getvalue()


def colour(image: Image, x: int, y: int) -> list[int]:
    return image.pixels[y, x].tolist()


def noise(width: int, height: int, mode: str = "RGB") -> Pillow.Image:
    channels = len(Pillow.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(4).integers(0, 256, (height, width, channels), np.uint8)
    return Pillow.fromarray(pixels.squeeze(2) if channels == 1 else pixels, mode if mode != "LA" else None)


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF", "HEIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once(format_: str, orientation: int) -> None:
    upright = Pillow.new("RGB", (48, 32), "white")
    upright.paste("red", (0, 0, 24, 16))
    upright.paste("blue", (24, 16, 48, 32))
    back = {
        2: Pillow.Transpose.FLIP_LEFT_RIGHT, 3: Pillow.Transpose.ROTATE_180, 4: Pillow.Transpose.FLIP_TOP_BOTTOM,
        5: Pillow.Transpose.TRANSPOSE, 6: Pillow.Transpose.ROTATE_90, 7: Pillow.Transpose.TRANSVERSE,
        8: Pillow.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = upright.transpose(back[orientation]) if orientation > 1 else upright
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    if format_ == "HEIF":  # its plugin turns the orientation into the file's own
        buffer = io.BytesIO()
        pytest.importorskip("pillow_heif").from_pillow(stored).save(buffer, quality=90, exif=exif.tobytes())
        image = decoded(buffer.getvalue())
    else:
        image = decoded(saved(stored, format_, exif=exif))
    assert (image.width, image.height) == (48, 32) == image.pixels.shape[1::-1]
    assert colour(image, 12, 8) == pytest.approx([255, 0, 0], abs=8)
    assert colour(image, 36, 24) == pytest.approx([0, 0, 255], abs=8)
    assert colour(image, 12, 24) == pytest.approx([255, 255, 255], abs=8)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_means_nothing_is_passed_over(value: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = value
    assert decoded(saved(Pillow.new("RGB", (4, 2)), exif=exif)).width == 4


def test_a_broken_exif_block_is_passed_over() -> None:
    assert decoded(saved(Pillow.new("RGB", (4, 2)), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")).width == 4


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("ground", [(255, 255, 255), (10, 20, 30)])
def test_transparency_shows_the_ground(mode: str, ground: tuple[int, int, int]) -> None:
    clear = Pillow.new(mode, (4, 4), (0,) * len(mode))
    assert (decoded(saved(clear), background=ground).pixels == ground).all()
    half = Pillow.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert colour(decoded(saved(half)), 0, 0) == pytest.approx([127] * 3, abs=1)


def test_a_transparent_palette_entry_shows_the_ground() -> None:
    picture = Pillow.new("P", (4, 4), 1)
    picture.putpalette([0, 0, 0, 200, 0, 0])
    picture.putpixel((0, 0), 0)
    image = decoded(saved(picture, "PNG", transparency=0))
    assert image.pixels[0, 0].tolist() == [255, 255, 255]
    assert image.pixels[1, 1].tolist() == [200, 0, 0]
    assert decoded(saved(picture, "GIF", transparency=0)).pixels[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_transparent_colour_shows_the_ground(mode: str) -> None:
    picture = Pillow.new(mode, (4, 4), "black")
    transparency = 0 if mode == "L" else (0, 0, 0)
    assert (decoded(saved(picture, "PNG", transparency=transparency)).pixels == 255).all()


@pytest.mark.parametrize(
    ("depth", "colour_type", "row", "key", "beside"),
    [
        (2, 0, b"\x1b", b"\0\1", [0, 170, 255]),  # grey 0, 1, 2, 3
        (4, 0, b"\x03\x4f", b"\0\3", [0, 68, 255]),
        (16, 0, b"\0\0\x12\x34\x44\x44\xff\xff", b"\x12\x34", [0, 68, 255]),
        (
            16,
            2,
            b"".join(v * 3 for v in (b"\0\0", b"\x12\x34", b"\x44\x44", b"\xff\xff")),
            b"\x12\x34" * 3,
            [0, 68, 255],
        ),
    ],
)
def test_a_transparent_colour_of_any_depth_shows_the_ground(
    depth: int, colour_type: int, row: bytes, key: bytes, beside: list[int]
) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 1, depth, colour_type, 0, 0, 0))
    data += chunk(b"tRNS", key) + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    pixels = decoded(data, background=(10, 20, 30)).pixels[0]
    assert pixels[1].tolist() == [10, 20, 30]
    assert pixels[[0, 2, 3], 0].tolist() == beside


@pytest.mark.parametrize("format_", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled(format_: str) -> None:
    levels = np.array([[0, 257, 32896, 65535]], np.uint16)
    assert decoded(saved(Pillow.fromarray(levels), format_)).pixels[0, :, 1].tolist() == [0, 1, 128, 255]


def test_wide_integers_and_floats_are_scaled() -> None:
    def grey(samples: np.ndarray) -> list[int]:
        return decoded(saved(Pillow.fromarray(samples), "TIFF")).pixels[0, :, 0].tolist()

    assert grey(np.array([[0, 32768, 65535]], np.int32)) == [0, 128, 255]
    assert grey(np.array([[0.0, 0.5, 1.0]], np.float32)) == [0, 128, 255]
    assert grey(np.array([[-100.0, 0.0, np.nan, 100.0]], np.float32)) == [0, 127, 127, 255]
    assert grey(np.array([[7, 7]], np.int32) * 100_000) == [0, 0]


def test_one_bit_and_cmyk() -> None:
    assert decoded(saved(Pillow.new("1", (3, 3), 1))).pixels.min() == 255
    ink = Pillow.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert decoded(saved(ink, "JPEG")).pixels[4, 4].tolist() == pytest.approx([255, 0, 0], abs=6)
    assert decoded(saved(ink, "TIFF")).pixels[4, 4].tolist() == pytest.approx([255, 0, 0], abs=6)


def test_lab_is_converted() -> None:
    lab = Pillow.new("LAB", (4, 4), (200, 128, 128))
    red, green, blue = decoded(saved(lab, "TIFF")).pixels[2, 2].tolist()
    assert 150 < red < 220
    assert abs(red - green) < 8
    assert abs(green - blue) < 8


def test_a_profile_is_applied() -> None:
    # What sRGB's 128 is in the linear-light XYZ space, whose profile Pillow can make.
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    plain = Pillow.new("RGB", (4, 4), (120, 60, 200))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert decoded(saved(plain, icc_profile=srgb)).pixels[0, 0].tolist() == [120, 60, 200]
    assert decoded(saved(plain, icc_profile=profile)).pixels[0, 0].tolist() == [120, 60, 200]  # not for RGB
    assert decoded(saved(plain, icc_profile=b"nonsense")).pixels[0, 0].tolist() == [120, 60, 200]
    assert decoded(saved(plain, icc_profile=_gamma_one(srgb))).pixels[0, 0].tolist() != [120, 60, 200]
    dark = decoded(saved(Pillow.new("RGB", (2, 2), (55, 55, 55)), icc_profile=_gamma_one(srgb)))
    assert colour(dark, 0, 0) == pytest.approx([128] * 3, abs=3)  # 55/255 of the light is what sRGB writes as 128


def _gamma_one(srgb: bytes) -> bytes:
    """An sRGB profile with its three tone curves made straight lines, and another name."""
    data = bytearray(srgb)
    for index in range(int.from_bytes(data[128:132], "big")):
        entry = 132 + 12 * index
        tag, at = bytes(data[entry : entry + 4]), int.from_bytes(data[entry + 4 : entry + 8], "big")
        if tag in (b"rTRC", b"gTRC", b"bTRC"):
            data[at : at + 12] = b"curv" + bytes(8)
    return bytes(data).replace("sRGB".encode("utf-16-be"), "line".encode("utf-16-be"))


@pytest.mark.parametrize("format_", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_stands_for_the_file(format_: str) -> None:
    frames = [Pillow.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    image = decoded(saved(frames[0], format_, save_all=True, append_images=frames[1:]))
    assert colour(image, 4, 4) == pytest.approx([255, 0, 0], abs=4)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "JPEG2000", "AVIF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("budget", [None, 70])
def test_a_file_that_breaks_off_is_a_failure(format_: str, share: float, budget: int | None) -> None:
    data = saved(noise(640, 480), format_)
    error = failure(data[: int(len(data) * share)], budget=budget)
    assert error.type in ("truncated", "corrupt")
    assert "\n" not in str(error)


def test_a_bomb_is_refused_by_its_header() -> None:
    data = saved(Pillow.new("1", (3000, 2000)))
    error = failure(data, max_pixels=5_000_000)
    assert error.type == "too_large"
    assert "--max-pixels" in str(error)
    assert "3000x2000" in str(error)
    assert decoded(data, max_pixels=6_000_000).width == 3000


def test_a_bomb_inside_an_icon_is_refused() -> None:
    inner = saved(Pillow.new("1", (5000, 4000)))
    icon = b"\0\0\1\0\1\0" + b"\x10\x10\0\0\1\0\x20\0" + len(inner).to_bytes(4, "little") + (22).to_bytes(4, "little")
    assert failure(icon + inner, max_pixels=1_000_000).type == "too_large"


def test_heic_by_its_plugin() -> None:
    heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    picture = Pillow.new("RGB", (61, 43), (200, 30, 40))
    heif.from_pillow(picture).save(buffer, quality=90)
    image = decoded(buffer.getvalue())
    assert (image.width, image.height) == (61, 43)
    assert colour(image, 30, 20) == pytest.approx([200, 30, 40], abs=8)
    assert failure(buffer.getvalue()[:-200]).type in ("truncated", "corrupt")
    assert failure(buffer.getvalue(), max_pixels=1000).type == "too_large"


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1), (3, 7), (161, 121)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    for mode in ("RGB", "RGBA", "L", "1", "P"):
        image = decoded(saved(Pillow.new(mode, size)))
        assert (image.width, image.height) == size
        assert image.pixels.shape == (size[1], size[0], 3)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("format_", "options"), [("JPEG", {"quality": 95}), ("PNG", {"compress_level": 1})])
def test_a_budget_lets_large_pictures_come_smaller_with_the_same_look(
    orientation: int, format_: str, options: dict[str, Any]
) -> None:
    smooth = noise(64, 48).resize((3000, 2001), Pillow.Resampling.BICUBIC)
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    data = saved(smooth, format_, exif=exif, **options)
    whole, small = decoded(data), decoded(data, budget=70)
    size = (whole.width, whole.height)
    assert (small.width, small.height) == size == whole.pixels.shape[1::-1]
    target = gemma.image_size(*size, 70)
    assert small.pixels.shape[1] < size[0]
    assert small.pixels.shape[1] >= 2 * target[0]
    assert small.pixels.shape[0] >= 2 * target[1]
    assert gemma.image_size(small.pixels.shape[1], small.pixels.shape[0], 70) == target
    seen = [
        np.asarray(Pillow.fromarray(image.pixels).resize(target, Pillow.Resampling.BICUBIC), np.int16)
        for image in (whole, small)
    ]
    assert np.abs(seen[0] - seen[1]).mean() < 1.0


@given(st.integers(1, 2500), st.integers(1, 2500), st.sampled_from(gemma.BUDGETS), st.sampled_from(["PNG", "JPEG"]))
@settings(deadline=None)
def test_a_budget_never_changes_the_number_of_tokens(width: int, height: int, budget: int, format_: str) -> None:
    data = saved(Pillow.new("L", (width, height)), format_, **({"subsampling": 0} if format_ == "JPEG" else {}))
    image = decoded(data, budget=budget)
    assert gemma.image_size(image.pixels.shape[1], image.pixels.shape[0], budget) == gemma.image_size(
        width, height, budget
    )


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(saved(Pillow.new("RGB", (8, 8)), "TIFF"))
    for at in range(8, len(data) - 12, 5):
        broken = bytes(data[:at]) + b"\xff\xfe" + bytes(data[at + 2 :])
        with contextlib.suppress(DecodeError):
            decoded(broken)
    assert capfd.readouterr() == ("", "")
