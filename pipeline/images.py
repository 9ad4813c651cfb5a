"""Converts image files to pixels and back, with Pillow. Files may come from anywhere, so decoding is bounded.

Pixels are uint8. Images with 16 bits per channel keep the upper eight bits, as in TensorFlow's `decode_png`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
import string
import struct
import unicodedata
import warnings
import zlib
from typing import Any

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont
import PIL.JpegImagePlugin
from numpy.typing import NDArray

MAX_PIXELS = 1 << 26  # 64 Mi: three times as many as a large camera has, 192 MiB decoded; more is a decompression bomb
# Pillow's names. AVIF needs Pillow 11.3, HEIF (the HEIC files of phones) needs pillow-heif.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "JPEG2000", "AVIF", "HEIF", "PPM")
_HEIC = (b"ftypheic", b"ftypheix", b"ftypheim", b"ftypheis", b"ftyphevc", b"ftypmif1")  # from byte 4 on
# Formats that every TFRecord reader decodes. Cameras write MPO: a JPEG file with more images after the first.
_KEPT_FORMATS = {"PNG": "png", "JPEG": "jpeg", "MPO": "jpeg"}
# Modes of grey images; for colour images Pillow itself drops the lower bits.
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
_CHANNELS = {"1": 1, "L": 1, "LA": 1, "P": 3, "PA": 3, "RGB": 3, "RGBA": 3, "RGBX": 3, "CMYK": 3, "YCbCr": 3}
_CHANNELS |= dict.fromkeys(_SIXTEEN_BITS, 1)
_SUBFILE, _BITS, _PHOTOMETRIC, _DNG = 254, 258, 262, 50706  # tags of TIFF
_TURNS = {  # Pillow's transpositions by EXIF orientation, as in its ImageOps.exif_transpose
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
_ON_ITS_SIDE = (5, 6, 7, 8)
# {EXIF orientation: axes (0: width, 1: height) whose last pixels come first once the image is upright}
_MIRRORED_AXES = {2: (0,), 3: (0, 1), 4: (1,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}
_MODE_OF_CHANNELS = {1: "L", 3: "RGB"}
_JPEG_QUALITY = 95
_OWN_LETTERS = frozenset(string.printable + "…·")  # letters of Pillow's own font
_NO_LETTER = "\uffff"
# By name, on Linux, macOS and Windows; the last ones have the most letters.
_FONTS = (
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf"),
    *("NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "msgothic.ttc"),
)
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK, _PNG_CRC = struct.Struct(">I4s"), struct.Struct(">I")  # before and after a chunk's data
_PNG_BITS = 24  # offset of the byte with the number of bits per channel
_PNG_METADATA = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")  # chunks that may hold the orientation
_JPEG_HEADER = re.compile(rb"\xff([\xc0-\xfe])")  # a marker before the pixels
_JPEG_SCAN, _JPEG_END = 0xDA, b"\xff\xd9"
_JPEG_FRAMES = range(0xC0, 0xD0)  # markers of the pixels' compression, except for these:
_NO_FRAMES = (0xC4, 0xC8, 0xCC)
_USUAL_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive, which every libjpeg decodes
_BLOCKS = {0: (8, 8), 1: (16, 8), 2: (16, 16)}  # {Pillow's number of the subsampling: (width, height) in pixels}


class BadImageError(ValueError):
    """The bytes are not a usable image; the message explains why."""


def open_file(data: bytes) -> PIL.Image.Image:
    """Opens an image file; reads only its header.

    Raises:
      BadImageError: the file is in none of the `_FORMATS`; is a camera raw file, a damaged PNG file or a JPEG file
        without an end; or has more than 16 bits per channel or 64 Mi pixels.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            image = PIL.Image.open(io.BytesIO(data), formats=_readable())
    except Exception as error:  # Pillow's readers raise a dozen error types, even SyntaxError
        raise BadImageError(_reason(data, error)) from None
    if image.width * image.height > MAX_PIXELS:
        raise BadImageError(f"the image has {image.width}x{image.height} pixels, more than {MAX_PIXELS}")
    if image.mode not in _CHANNELS and not _is_deep_grey(image):
        raise BadImageError(f"the image has mode {image.mode}, not 8 or 16 bits per channel")
    if image.format == "PNG":
        _add_late_metadata(image, _check_png(data))
    if image.format in ("JPEG", "MPO"):
        _check_jpeg(data)
    if image.format == "TIFF" and (data[8:10] == b"CR" or _DNG in _tags(image) or _tags(image).get(_SUBFILE, 0) & 1):
        raise BadImageError("it is a camera's raw file, and only its preview could be read; develop it to PNG or JPEG")
    return image


@functools.cache
def _readable() -> tuple[str, ...]:
    """Returns the `_FORMATS` that this installation can read."""
    with contextlib.suppress(ImportError):
        import pillow_heif  # noqa: PLC0415 (optional)

        pillow_heif.register_heif_opener()
    PIL.Image.init()
    return tuple(name for name in _FORMATS if name in PIL.Image.OPEN)


def _tags(image: PIL.Image.Image) -> Any:
    return image.tag_v2  # type: ignore[attr-defined]


def _check_png(data: bytes) -> bytes:
    """Returns the metadata chunks after the pixels, which Pillow has not read yet.

    Checks the chunks that decoding needs, as TensorFlow does but Pillow does not.
    """
    start, name, has_pixels, late = len(_PNG_SIGNATURE), b"", False, []
    while name != b"IEND":
        header = data[start : start + _PNG_CHUNK.size]
        if len(header) < _PNG_CHUNK.size:
            raise BadImageError("the PNG file is cut short")
        length, name = _PNG_CHUNK.unpack(header)
        end = start + _PNG_CHUNK.size + length
        if len(data) < end + _PNG_CRC.size:
            raise BadImageError("the PNG file is cut short")
        is_critical = name[:1].isupper()
        if is_critical and zlib.crc32(data[start + 4 : end]) != _PNG_CRC.unpack_from(data, end)[0]:
            raise BadImageError(f"the CRC of the PNG file's chunk {name.decode('latin-1')!r} is wrong")
        if name == b"IHDR" and data[start + 18 : start + 20] != b"\0\0":
            raise BadImageError("the PNG file has an unknown compression or filter method")
        has_pixels |= name == b"IDAT"
        if has_pixels and name in _PNG_METADATA:
            late.append(data[start : end + _PNG_CRC.size])
        start = end + _PNG_CRC.size
    return b"".join(late)


def _add_late_metadata(image: PIL.Image.Image, chunks: bytes) -> None:
    """Adds metadata from a PNG file's last chunks to the image's `info`.

    Pillow's `getexif` would decode the image to reach them, and leave a damaged image half decoded.
    """
    if not chunks:
        return
    header = io.BytesIO()
    PIL.Image.new("L", (1, 1)).save(header, "PNG")
    small = header.getvalue()
    first = small.index(b"IDAT") - 4
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        late = PIL.Image.open(io.BytesIO(small[:first] + chunks + small[first:]), formats=("PNG",))
        for name, value in late.info.items():
            image.info.setdefault(name, value)


def _check_jpeg(data: bytes) -> None:
    """Raises BadImageError if the pixel data has no end marker.

    If the end of a file is zeros, Pillow takes them as pixels; TensorFlow reads on to the end and fails.
    """
    _, scan = _jpeg_frame(data)
    if scan is not None and data.find(_JPEG_END, scan) < 0:
        zeros = len(data) - len(data.rstrip(b"\0"))
        said = f": its last {zeros:,} bytes are zeros" if zeros > 1 else ""
        raise BadImageError(f"the JPEG file is cut short{said}")


def _jpeg_frame(data: bytes) -> tuple[int | None, int | None]:
    """Returns a JPEG file's frame marker and the offset of the first pixels; None for each that is not found."""
    frame, start = None, 2
    while found := _JPEG_HEADER.match(data, start):
        marker = found[1][0]
        if marker == _JPEG_SCAN:
            return frame, start
        if marker in _JPEG_FRAMES and marker not in _NO_FRAMES:
            frame = marker
        start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        while data[start : start + 2] == b"\xff\xff":  # fill bytes
            start += 1
    return frame, None


def kept_as(image: PIL.Image.Image, data: bytes) -> str | None:
    """Returns `png` or `jpeg` if every TFRecord reader can decode an opened image file as it is; otherwise None."""
    kind = _KEPT_FORMATS.get(image.format or "")
    # TensorFlow does not read lossless or arithmetic JPEG, which this Pillow may read. And Pillow assumes that CMYK
    # values are inverted even without Adobe's marker; TensorFlow does not.
    is_unusual = _jpeg_frame(data)[0] not in (None, *_USUAL_FRAMES) or (
        image.mode == "CMYK" and "adobe" not in image.info
    )
    return None if kind == "jpeg" and is_unusual else kind


def channels_of(image: PIL.Image.Image) -> int:
    """Returns 1 for a grey image, 3 for others; transparency does not count."""
    return 1 if _is_deep_grey(image) else _CHANNELS[image.mode]


def _is_deep_grey(image: PIL.Image.Image) -> bool:
    """Returns whether the image is a 16-bit PGM file, whose values Pillow scales to 0..65,535, in 32 bits."""
    return image.format == "PPM" and image.mode == "I"


def orientation(image: PIL.Image.Image) -> int:
    """Returns the EXIF orientation of an opened image, 1 (upright) to 8: how to rotate or mirror it to be upright.

    Only metadata is read. Damaged EXIF data counts as none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            # Not the method of a PNG file, which decodes the image: errors in its pixels would be lost here.
            found = PIL.Image.Image.getexif(image).get(PIL.ExifTags.Base.Orientation)
            return int(found) if found in _TURNS else 1
    except Exception:  # Pillow's readers raise a dozen error types
        return 1


def orientation_of(data: bytes) -> int:
    """Returns the `orientation` of an image file; 1 if it cannot be opened."""
    try:
        return orientation(open_file(data))
    except BadImageError:
        return 1


def upright_size(image: PIL.Image.Image) -> tuple[int, int]:
    """Returns the (height, width) of an opened image once it is upright."""
    if image.format == "TIFF":  # Pillow rotates it while decoding, and already reports the final size
        return image.height, image.width
    return turned_size((image.height, image.width), orientation(image))


def turned_size(size: tuple[int, int], value: int) -> tuple[int, int]:
    """Returns the (height, width) of an image of this size after rotating it by an `orientation`."""
    return size[::-1] if value in _ON_ITS_SIDE else size


def upright_places(places: NDArray[np.float64], value: int, size: tuple[float, float]) -> NDArray[np.float64]:
    """Returns where places in an image lie after rotating it by an `orientation`.

    Args:
      places: y and x of each place, float64 (..., 2).
      value: orientation, 1 to 8.
      size: (height, width) of the image before, in the same unit as the places.
    """
    made = places.copy()
    for axis in _MIRRORED_AXES.get(value, ()):
        made[..., 1 - axis] = size[1 - axis] - made[..., 1 - axis]
    return made[..., ::-1] if value in _ON_ITS_SIDE else made


def decode_scaled(image: PIL.Image.Image, size: tuple[int, int]) -> None:
    """Makes an opened JPEG decode at 1/2, 1/4 or 1/8 of its size, provided that is not below a size.

    This takes a fraction of the time, and blurs the image a little if it is then resized. Other formats are unaffected.

    Args:
      image: image from `open_file`.
      size: (height, width) of the upright image.
    """
    height, width = size
    image.draft(None, (height, width) if orientation(image) in _ON_ITS_SIDE else (width, height))


def pixels(image: PIL.Image.Image, channels: int = 0, upright: bool = False) -> NDArray[np.uint8]:
    """Decodes an opened image: uint8 (height, width, channels), transparency dropped.

    Args:
      image: image from `open_file`.
      channels: 1 or 3; 0 for as many as the image has.
      upright: whether to apply its EXIF orientation, which TensorFlow's decoders do not.

    Raises:
      BadImageError: the file is cut short or corrupt.
    """
    channels = channels or channels_of(image)
    try:
        with warnings.catch_warnings(action="ignore"):
            decoded = eight_bits(image).convert(_MODE_OF_CHANNELS[channels])
            turn = _TURNS.get(orientation(image)) if upright else None
            decoded = decoded if turn is None else decoded.transpose(turn)
    except Exception as error:
        raise BadImageError(f"the image cannot be decoded: {error or type(error).__name__}") from None
    return np.asarray(decoded, np.uint8).reshape(decoded.height, decoded.width, channels)


def turned(array: NDArray[np.uint8], value: int) -> NDArray[np.uint8]:
    """Returns an image, uint8 (height, width, channels), made upright according to an `orientation`."""
    if value not in _TURNS:
        return array
    image = _image(array).transpose(_TURNS[value])
    return np.asarray(image, np.uint8).reshape(image.height, image.width, array.shape[2])


def upright_file(image: PIL.Image.Image) -> bytes:
    """Rewrites an opened PNG or JPEG file upright and without its EXIF data.

    A PNG file keeps its pixels (with 16 bits per channel, the upper eight). A JPEG file is encoded again with its own
    quantization, which is nearly lossless if blocks stay blocks, as in camera photographs, whose sides are multiples of
    16. Otherwise it is quantized twice as finely.

    Args:
      image: image from `open_file` whose `kept_as` is `png` or `jpeg`.

    Raises:
      BadImageError: the file is cut short or corrupt.
    """
    stream = io.BytesIO()
    try:
        with warnings.catch_warnings(action="ignore"):
            decoded = eight_bits(image).transpose(_TURNS[orientation(image)])
            options = {} if image.format == "PNG" else _encoding_of(image)
            kind = "PNG" if image.format == "PNG" else "JPEG"
            decoded.save(stream, kind, icc_profile=image.info.get("icc_profile"), **options)
    except Exception as error:
        raise BadImageError(f"the image cannot be decoded: {error or type(error).__name__}") from None
    return stream.getvalue()


def _encoding_of(image: PIL.Image.Image) -> dict[str, Any]:
    """Returns Pillow's options for encoding the rotated pixels of a JPEG file in the way the file was encoded."""
    tables = [list(table) for _, table in sorted(image.quantization.items())]  # type: ignore[attr-defined]
    value, subsampling = orientation(image), PIL.JpegImagePlugin.get_sampling(image)
    block = _BLOCKS.get(subsampling, (8, 8))
    if any(image.size[axis] % block[axis] for axis in _MIRRORED_AXES[value]):  # a cut block now comes first
        tables = [[max(1, step // 2) for step in table] for table in tables]
    if value in _ON_ITS_SIDE:
        tables = [[table[8 * (n % 8) + n // 8] for n in range(64)] for table in tables]
        subsampling = 0 if block[0] != block[1] else subsampling  # Pillow does not write 4:4:0
    progressive = bool(image.info.get("progressive"))
    return {"qtables": tables, "subsampling": max(0, subsampling), "progressive": progressive}


def eight_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """Returns an image reduced to the upper eight bits if it has 16."""
    if _is_deep_grey(image):
        return PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode not in _SIXTEEN_BITS:
        return image
    bits, is_negative = 16, False
    if image.format == "TIFF":
        bits, is_negative = _tags(image).get(_BITS, (16,))[0], _tags(image).get(_PHOTOMETRIC) == 0  # white is zero
    values = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
    return PIL.Image.fromarray(255 - values if is_negative else values)


def with_channels(array: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Converts an image to 1 or 3 channels; grey by ITU-R 601-2 weights, like Pillow."""
    if array.shape[2] == channels:
        return array
    return pixels(_image(array), channels)


def resized(array: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resizes an image to (height, width) with an antialiased bilinear filter."""
    if array.shape[:2] == size:
        return array
    image = _image(array).resize((size[1], size[0]), PIL.Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).reshape(*size, array.shape[2])


def nearest(array: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resizes an image to (height, width) by nearest neighbour, for masks, whose values cannot be mixed."""
    rows, columns = ((2 * np.arange(new) + 1) * old // (2 * new) for new, old in zip(size, array.shape, strict=False))
    return array if array.shape[:2] == size else array[rows[:, None], columns]


def classes_of(data: bytes) -> NDArray[np.uint8]:
    """Returns the classes in the file of a mask, uint8 (height, width, 1): palette indices, or grey values.

    Raises:
      BadImageError: the file is not a PNG with a palette, 8-bit grey or one bit.
    """
    opened = open_file(data)
    if opened.format != "PNG" or opened.mode not in ("L", "P", "1"):
        kind = f"{opened.mode}, {opened.format}" if opened.format == "PNG" else f"a {opened.format} file"
        raise BadImageError(f"is {kind}; a mask must be a PNG file that is grey, of 8 bits or one, or has a palette")
    if opened.mode == "L" and data[_PNG_BITS] != 8:
        raise BadImageError(
            f"is a grey PNG file of {data[_PNG_BITS]} bits, which decoders stretch; write it with 8 bits"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            return np.asarray(opened).astype(np.uint8)[..., None]
    except Exception as error:
        raise BadImageError(f"cannot be decoded: {error or type(error).__name__}") from None


def encoded(array: NDArray[np.uint8], encoding: str) -> bytes:
    """Encodes an image as the bytes of a file: `png`, or `jpeg` with quality 95."""
    stream = io.BytesIO()
    _image(array).save(stream, encoding, quality=_JPEG_QUALITY)  # PNG ignores the quality
    return stream.getvalue()


def _image(array: NDArray[np.uint8]) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] == 1 else array))


def _reason(data: bytes, error: Exception) -> str:
    if isinstance(error, PIL.UnidentifiedImageError):
        if data[4:].startswith(_HEIC) and "HEIF" not in _readable():
            return "it is a HEIC file, which needs pillow-heif: pip install 'stepfeed[images]'"
        begin = f"begins with 0x{data[:4].hex()}" if data else "is empty"
        return _words_of_reader(data) or f"no image of a known format: it {begin}"
    if isinstance(error, PIL.Image.DecompressionBombError):
        return f"more than {MAX_PIXELS} pixels"
    return f"the image's header is corrupt: {error or type(error).__name__}"


def _words_of_reader(data: bytes) -> str | None:
    """Returns the error of the reader for the format whose signature a file begins with; None without such a format."""
    for name in _readable():
        read, accepts = PIL.Image.OPEN[name]
        if accepts is None or accepts(data[:16]) is not True:
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                read(io.BytesIO(data), "")
        except Exception as error:  # Pillow's readers raise a dozen types
            return f"it begins as a {name} file, but its header is corrupt: {error or type(error).__name__}"
    return None


@functools.lru_cache(maxsize=1024)
def lettering(text: str, size: int) -> tuple[str, PIL.ImageFont.FreeTypeFont]:
    """Returns a text in a form that can be drawn, and a font of a pixel size with its letters.

    For ASCII the font is Pillow's own, otherwise the first of `_FONTS` that is installed and has every letter. Without
    such a font, letters lose their accents, and other characters become question marks.
    """
    own = PIL.ImageFont.load_default(size)
    assert isinstance(own, PIL.ImageFont.FreeTypeFont)
    text = unicodedata.normalize("NFC", text)  # file names may have accents as separate characters without width
    for name in () if all(letter in _OWN_LETTERS for letter in text) else (*_FONTS, _font_of_matplotlib()):
        with contextlib.suppress(OSError):
            found = PIL.ImageFont.truetype(name, size)
            missing = bytes(found.getmask(_NO_LETTER))
            if all(letter.isspace() or bytes(found.getmask(letter)) != missing for letter in text):
                return text, found
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(letter if letter in _OWN_LETTERS else "?" for letter in plain), own


def written(
    pen: PIL.ImageDraw.ImageDraw, at: tuple[float, float], text: str, ink: Any, size: int, anchor: str = "la"
) -> None:
    """Writes a text in a font that has its letters."""
    text, font = lettering(text, size)
    pen.text(at, text, ink, font, anchor=anchor)


def width_of(text: str, size: int) -> float:
    """Returns the width of a written text in pixels."""
    text, font = lettering(text, size)
    return font.getlength(text)


def fitted(text: str, size: int, width: float) -> str:
    """Returns a text, cut to be no wider than `width` pixels."""
    if width_of(text, size) <= width:
        return text
    while text and width_of(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _font_of_matplotlib() -> str:
    found = importlib.util.find_spec("matplotlib")
    folder = os.path.dirname(found.origin) if found and found.origin else ""
    return os.path.join(folder, "mpl-data", "fonts", "ttf", "DejaVuSans.ttf")


def is_image(value: object) -> bool:
    """Returns whether a value is the bytes of a PNG or JPEG file, judging by the first bytes."""
    return isinstance(value, bytes) and value.startswith((_PNG_SIGNATURE, b"\xff\xd8\xff"))


def as_pixels(image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns an image of any shape as uint8 for viewing; floats, possibly standardized, are stretched to 0..255."""
    values = np.asarray(image)
    if values.dtype == np.uint8:
        return values
    values = values.astype(np.float32)
    least, greatest = float(values.min()), float(values.max())
    return ((values - least) * (255.0 / max(greatest - least, 1e-6))).round().astype(np.uint8)


def as_rgb(image: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Returns `as_pixels` in RGB, (height, width, 3); the first channel as grey if the image is not RGB."""
    pixels = as_pixels(image)
    return pixels if pixels.shape[2] == 3 else np.repeat(pixels[:, :, :1], 3, axis=2)
