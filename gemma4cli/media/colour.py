"""Any Pillow mode to 8-bit sRGB, as a person would see it on a plain ground."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from PIL import Image as Pillow
from PIL import ImageCms


def to_rgb(picture: Pillow.Image, background: tuple[int, int, int]) -> Pillow.Image:
    """A loaded picture in mode RGB: deep samples scaled, profile applied, transparency over `background`."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        rgb = _from_deep(picture).convert("RGB")
        clear = picture.info.get("transparency")
        if isinstance(clear, int):
            rgb.paste(background, mask=Pillow.fromarray(np.asarray(picture) == clear))
        return rgb
    if picture.mode in ("RGB", "L", "CMYK") and not picture.has_transparency_data:
        return _managed(picture)
    if picture.mode == "LAB":
        return _transformed(picture, ImageCms.createProfile("LAB"), "LAB")
    if not picture.has_transparency_data and picture.mode not in ("RGBa", "La"):
        return _managed(_without_profile_mismatch(picture))
    rgba = picture.convert("RGBA")
    alpha = rgba.getchannel("A")
    ground = Pillow.new("RGB", rgba.size, background)
    rgb = rgba.convert("RGB")
    rgb.info = picture.info
    ground.paste(_managed(rgb), mask=alpha)
    return ground


def _without_profile_mismatch(picture: Pillow.Image) -> Pillow.Image:
    rgb = picture.convert("RGB")
    rgb.info = picture.info
    return rgb


def _from_deep(picture: Pillow.Image) -> Pillow.Image:
    """16-bit, 32-bit and floating samples, scaled to 8 bits.

    Integers within 16 bits are taken as 16-bit. Floats within 0 to 1 are taken as such; others, and wider
    integers, have no agreed scale and are spread from their least to their greatest.
    """
    samples = np.asarray(picture, dtype=np.float64)
    samples = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(samples.min()), float(samples.max())
    if picture.mode == "F" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif picture.mode != "F" and low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    scaled = (samples - low) * (255 / (high - low)) if high > low else np.zeros_like(samples)
    return Pillow.fromarray(np.rint(scaled).astype(np.uint8), "L")


def _managed(picture: Pillow.Image) -> Pillow.Image:
    """Converts through the embedded ICC profile, where there is one that fits the picture's channels."""
    profile = picture.info.get("icc_profile")
    if isinstance(profile, bytes) and profile:
        transform = _transform(profile, picture.mode)
        if transform is not None:
            result = ImageCms.applyTransform(picture, transform)
            if result is not None:
                return result
    return picture if picture.mode == "RGB" else picture.convert("RGB")


_SPACES = {"RGB": "RGB ", "CMYK": "CMYK", "L": "GRAY"}


@functools.lru_cache(maxsize=16)
def _transform(profile: bytes, mode: str) -> Any | None:
    """A transform to sRGB; None where the profile is sRGB itself, broken, or for other channels."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space != _SPACES.get(mode):
            return None
        if mode == "RGB" and "srgb" in (source.profile.profile_description or "").lower():
            return None
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


def _transformed(picture: Pillow.Image, profile: Any, mode: str) -> Pillow.Image:
    transform = ImageCms.buildTransform(profile, ImageCms.createProfile("sRGB"), mode, "RGB")
    result = ImageCms.applyTransform(picture, transform)
    return result if result is not None else picture
