"""A picture file to upright RGB pixels.

The model's processor takes a picture as it is given: it drops alpha, clips 16 bits and knows no orientation. All of
that is settled here, once, for every format.
"""

from __future__ import annotations

import functools
import logging
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile

from gemma4cli.errors import DecodeError
from gemma4cli.gemma import image_size
from gemma4cli.media.colour import to_rgb
from gemma4cli.media.decoded import Image
from gemma4cli.media.options import MediaOptions

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its readers' remarks go to stderr
_QUIET = ("ignore", None, Warning, re.compile(r"PIL\."), 0)  # an entry of warnings.filters

# What sniffing lets through, and no more: Pillow also has readers that start other programs.
_FORMATS = (
    "JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "DIB", "AVIF", "JPEG2000", "ICO", "CUR", "ICNS", "TGA",
    "PPM", "PSD", "DDS", "PCX", "SGI", "SUN", "QOI",
)  # fmt: skip
_ORIENTATION = 0x0112  # EXIF tag
_UPRIGHT = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
_SWAPS = (5, 6, 7, 8)
_STEPS = {"L;2": 85, "L;4": 17}  # of 8 bits to one of 2 or 4
_MOST_PAGES = 64
_MARGIN = 2  # how far above the model's size a reduced picture stays, so that reducing cannot be seen


class Header(NamedTuple):
    """Upright size in pixels, and how many frames or pages there are."""

    width: int
    height: int
    frames: int


def decode_image(file: BinaryIO, options: MediaOptions, *, heif: bool = False) -> Image:
    """Decodes the first picture of a file.

    Raises DecodeError with a type of `too_large` (from the header, nothing decoded), `truncated`, `corrupt` or
    `unsupported_format`.
    """
    with reading():
        return _upright(open_picture(file, options, heif=heif), options)


def decode_pages(file: BinaryIO, options: MediaOptions) -> tuple[Image, ...]:
    """Decodes the pages of a file, `options.pages` of them at most.

    Raises what `decode_image` raises, and DecodeError `too_many_pages` where all of very many are wanted.
    """
    with reading():
        picture = open_picture(file, options)
        total = getattr(picture, "n_frames", 1)
        if options.pages is None and total > _MOST_PAGES:
            message = (
                f"the file has {total} pages; up to {_MOST_PAGES} can be taken at once, --frames N takes the first"
            )
            raise DecodeError("too_many_pages", message)
        pages = []
        for number in range(total if options.pages is None else min(total, options.pages)):
            picture.seek(number)
            _refuse_large(picture, options)
            pages.append(_upright(picture, options))
        return tuple(pages)


def read_header(file: BinaryIO, options: MediaOptions, *, heif: bool = False, frames: bool = False) -> Header:
    """What a picture's header says; nothing is decoded. With `frames`, they or the pages are counted.

    Raises what `decode_image` raises for headers.
    """
    with reading():
        picture = open_picture(file, options, heif=heif)
        # Pillow would decode a PNG to look for a block after its pixels.
        unknown = picture.format == "PNG" and "exif" not in picture.info
        width, height = picture.size
        if not unknown and _orientation(picture) in _SWAPS:
            width, height = height, width
        return Header(width, height, getattr(picture, "n_frames", 1) if frames else 1)


def _upright(picture: Pillow.Image, options: MediaOptions) -> Image:
    orientation = _orientation(picture)
    width, height = picture.size
    if orientation in _SWAPS:
        width, height = height, width
    if options.budget is not None:
        _draft(picture, options.budget, swapped=orientation in _SWAPS)
    picture.load()
    rgb = to_rgb(picture, options.background)
    if orientation in _UPRIGHT:
        rgb = rgb.transpose(_UPRIGHT[orientation])
    if options.budget is not None:
        rgb = _reduced(rgb, width, height, options.budget)
    return Image(np.array(rgb), width, height)


def open_picture(file: BinaryIO, options: MediaOptions, *, heif: bool = False) -> Pillow.Image:
    """Reads a picture's header and refuses it when it promises more than `options.max_pixels`."""
    if heif:
        _add_heif()
    Pillow.MAX_IMAGE_PIXELS = options.max_pixels  # for pictures within pictures, which only Pillow sees
    picture = Pillow.open(file, formats=("HEIF",) if heif else _FORMATS)
    _refuse_large(picture, options)
    _scale_transparency(picture)
    return picture


def _scale_transparency(picture: Pillow.Image) -> None:
    """Brings the colour that a PNG calls transparent to 8 bits, to which Pillow brings all samples but 16-bit grey."""
    key = picture.info.get("transparency")
    depth = picture.tile[0].args if isinstance(picture, PngImageFile) and picture.tile else None
    if isinstance(key, int) and depth in _STEPS:
        picture.info["transparency"] = key * _STEPS[depth]
    elif isinstance(key, tuple) and depth == "RGB;16B":
        picture.info["transparency"] = tuple(value >> 8 for value in key)


def _refuse_large(picture: Pillow.Image, options: MediaOptions) -> None:
    width, height = picture.size
    if width * height > options.max_pixels:
        raise DecodeError(
            "too_large",
            f"{width}x{height} is {width * height / 1e6:,.0f} megapixels, over the limit of "
            f"{options.max_pixels / 1e6:,.0f}; --max-pixels raises it",
        )


@functools.cache
def _add_heif() -> None:
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False)


@contextmanager
def reading() -> Iterator[None]:
    """Makes whatever Pillow's readers raise on broken bytes a DecodeError, and keeps their warnings quiet."""
    if _QUIET not in warnings.filters:
        # For good: catch_warnings would undo what other threads do meanwhile.
        warnings.filterwarnings("ignore", module=_QUIET[3].pattern)
    try:
        yield
    except Pillow.DecompressionBombError as error:
        raise DecodeError("too_large", f"{error}; --max-pixels raises the limit") from error
    except UnidentifiedImageError as error:
        raise DecodeError("corrupt", "the image's header is broken") from error
    except MemoryError as error:
        raise DecodeError("too_large", "the image does not fit into memory") from error
    except (OSError, EOFError) as error:
        text = str(error)
        cut = isinstance(error, EOFError) or "truncated" in text.lower()
        raise DecodeError("truncated" if cut else "corrupt", f"the image's data are broken: {text}") from error
    except (SyntaxError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
            AssertionError, NotImplementedError, RuntimeError, ZeroDivisionError, struct.error) as error:  # fmt: skip
        # Pillow's plugins are many and let through whatever broken fields make Python raise.
        raise DecodeError("corrupt", f"the image's data are broken: {error or type(error).__name__}") from error


def _orientation(picture: Pillow.Image) -> int:
    """EXIF orientation, 1 where there is none or the EXIF block is broken, which viewers forgive too.

    TIFF and HEIF pictures come upright from their readers, which then report 1.
    """
    if picture.format in ("TIFF", "HEIF"):
        return 1
    try:
        value = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # the block is free-form bytes, parsed by several modules
        return 1
    return value if isinstance(value, int) else 1


def _draft(picture: Pillow.Image, budget: int, *, swapped: bool) -> None:
    """Asks the JPEG decoder for 1/2, 1/4 or 1/8 of the size, which it computes several times faster."""
    if picture.format not in ("JPEG", "MPO"):
        return
    width, height = picture.size
    most = _spare(*((height, width) if swapped else (width, height)), budget)
    for factor in (8, 4, 2):
        smaller = (-(-width // factor), -(-height // factor))
        if factor <= most and _same_tokens((width, height), smaller, budget):
            picture.draft(None, smaller)
            return


def _reduced(rgb: Pillow.Image, width: int, height: int, budget: int) -> Pillow.Image:
    """Averages whole squares of pixels of a picture that is still several times larger than the model needs.

    width, height: of the whole picture, whose number of tokens must not change.
    """
    factor = _spare(rgb.width, rgb.height, budget)
    smaller = (-(-rgb.width // max(factor, 1)), -(-rgb.height // max(factor, 1)))
    return rgb.reduce(factor) if factor > 1 and _same_tokens((width, height), smaller, budget) else rgb


def _spare(width: int, height: int, budget: int) -> int:
    """By how much a picture can be divided before it comes under the margin above the model's size."""
    target = image_size(width, height, budget)
    return min(width // (target[0] * _MARGIN), height // (target[1] * _MARGIN))


def _same_tokens(size: tuple[int, int], smaller: tuple[int, int], budget: int) -> bool:
    return image_size(*size, budget) == image_size(*smaller, budget)
