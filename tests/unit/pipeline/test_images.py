"""Image files of every kind, whole, cut, mutated and malicious: pixels, or `BadImageError` and nothing else."""

import io
import random
import struct
import sys
import time
import tracemalloc
import unicodedata
import warnings
import zlib

import numpy as np
import PIL.ExifTags
import PIL.Image
import PIL.ImageFont
import PIL.ImageOps
import pytest

from pipeline import images
from pipeline.images import BadImageError


def file_of(array_or_image, kind, **options):
    image = array_or_image if isinstance(array_or_image, PIL.Image.Image) else PIL.Image.fromarray(array_or_image)
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(width, height, bits=8, colour=2, data=b"", chunks=()):
    """Returns a PNG file with a header, chunks and image data as given."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def half_of_zeros():
    """Returns a JPEG file whose second half was reserved on a disk, but not written."""
    data = file_of(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8), "JPEG")
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def decoded(data, channels=0):
    return images.pixels(images.open_file(data), channels)


LOSSLESS = [
    *(("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})),
    *(("JPEG2000", {}), ("JPEG2000", {"no_jp2": True}), ("PPM", {})),
]


@pytest.fixture
def colour(pixels):
    return pixels(1, (13, 9, 3))[0]


@pytest.fixture
def grey(pixels):
    return pixels(1, (13, 9, 1))[0]


@pytest.fixture
def palette():
    """A palette image (4, 3), its colours, and its file with a transparency of each colour."""
    image = PIL.Image.fromarray(np.arange(12, dtype=np.uint8).reshape(4, 3), "P")
    image.putpalette(bytes(range(100, 136)))
    return image, np.arange(100, 136, dtype=np.uint8).reshape(4, 3, 3)


@pytest.mark.parametrize(("kind", "options"), LOSSLESS)
def test_a_lossless_file_gives_its_pixels(kind, options, colour):
    data = file_of(colour, kind, **options)
    assert images.channels_of(images.open_file(data)) == 3
    assert (decoded(data) == colour).all()
    assert decoded(data, 1).shape == (13, 9, 1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "JPEG2000", "PPM"])
def test_a_grey_file_has_one_channel(kind, grey):
    data = file_of(grey[..., 0], kind)
    assert images.channels_of(images.open_file(data)) == 1
    assert (decoded(data) == grey).all()
    assert (decoded(data, 3) == np.repeat(grey, 3, axis=2)).all()


def test_cmyk_becomes_colour():
    cyan = PIL.Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    found = decoded(file_of(cyan, "JPEG", quality=95))
    assert found.shape == (8, 8, 3)
    assert np.abs(found.astype(int) - (0, 255, 255)).max() <= 6


def test_transparency_is_dropped_not_blended(colour, grey):
    alpha = np.full((13, 9, 1), 7, np.uint8)
    assert (decoded(file_of(np.concatenate([colour, alpha], 2), "PNG")) == colour).all()
    assert (decoded(file_of(np.concatenate([grey, alpha], 2), "PNG")) == grey).all()
    assert (decoded(png(2, 1, 8, 6, b"\0\x01\x02\x03\0\xff\xfe\xfd\0")) == [[[1, 2, 3], [255, 254, 253]]]).all()


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("PNG", {"transparency": bytes([0, 128] * 6)}), ("GIF", {"transparency": 3})]
)
def test_a_palette_becomes_colour_without_a_warning(kind, options, palette):
    image, expected = palette
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (decoded(file_of(image, kind, **options)) == expected).all()


def test_one_bit_becomes_black_and_white():
    bits = np.array([[True, False, True], [False, False, True]])
    assert (decoded(file_of(bits, "PNG"))[..., 0] == bits * 255).all()


def test_the_first_image_of_an_animation_is_taken(pixels):
    frames = [PIL.Image.fromarray(frame[..., 0]) for frame in pixels(3, (5, 4, 1))]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert PIL.Image.open(io.BytesIO(data)).n_frames == 3
    assert (decoded(data, 1)[..., 0] == np.asarray(frames[0])).all()


def test_a_jpeg_of_a_camera_with_more_images_after_the_first_is_kept_as_jpeg(pixels):
    first, second = (PIL.Image.fromarray(image) for image in pixels(2, (16, 16, 3)))
    data = file_of(first, "MPO", save_all=True, append_images=[second], quality=95)
    opened = images.open_file(data)
    assert images.kept_as(opened, data) == "jpeg"
    assert (images.pixels(opened) == decoded(file_of(first, "JPEG", quality=95))).all()


def with_orientation(image, kind, value, **options):
    """Returns a file that says how its image must be turned."""
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = value
    return file_of(image, kind, exif=exif, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("value", range(1, 9))
def test_an_image_is_turned_upright_as_pillow_does_it(kind, value, colour):
    data = with_orientation(colour, kind, value)
    expected = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data))))
    opened = images.open_file(data)
    assert images.orientation(opened) == value
    assert images.upright_size(opened) == expected.shape[:2]
    assert (images.pixels(opened, upright=True) == expected).all()
    if kind != "TIFF":  # which Pillow turns itself
        assert images.pixels(images.open_file(data)).shape == colour.shape  # as TensorFlow decodes it
    assert images.pixels(images.open_file(data), 1, upright=True).shape == (*expected.shape[:2], 1)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_there_is_not_is_none(value, colour):
    assert images.orientation(images.open_file(with_orientation(colour, "JPEG", value))) == 1


def psnr(one, other):
    return 10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2))


def photograph(height, width):
    """Returns a smooth picture with some noise."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([128 + 90 * np.sin(x / 17 + c) * np.cos(y / 23) for c in range(3)], axis=-1)
    return np.uint8((waves + np.random.default_rng(1).normal(0, 4, waves.shape)).clip(0, 255))


@pytest.mark.parametrize("kind", ["RGB", "L", "P", "RGBA", "LA", "1"])
@pytest.mark.parametrize("value", range(2, 9))
def test_a_png_file_is_written_again_upright_without_loss(kind, value, colour):
    data = with_orientation(PIL.Image.fromarray(colour).convert(kind), "PNG", value)
    upright = images.upright_file(images.open_file(data))
    opened = images.open_file(upright)
    assert (opened.mode, images.orientation(opened), b"eXIf" in upright) == (kind, 1, False)
    expected = images.pixels(images.open_file(data), upright=True)
    assert (images.pixels(opened) == expected).all()
    assert (images.turned(decoded(data), value) == expected).all()


def test_a_png_file_of_16_bits_keeps_the_upper_eight_upright():
    grey, colour, *files = grey_and_colour_of_16_bits()
    exif = struct.pack(">2sHIHHHIHH", b"MM", 42, 8, 1, 0x0112, 3, 1, 6, 0) + bytes(4)
    for values, data in zip((grey, colour), files, strict=True):
        chunk = b"eXIf" + exif
        chunk = struct.pack(">I", len(exif)) + chunk + struct.pack(">I", zlib.crc32(chunk))
        found = decoded(images.upright_file(images.open_file(data[:33] + chunk + data[33:])))
        assert (found == np.rot90(values.reshape(3, 4, -1) >> 8, -1)).all()


@pytest.mark.parametrize(
    ("size", "options", "least"),
    [
        ((96, 128), {"quality": 92}, 48),
        ((96, 128), {"quality": 75}, 48),
        ((96, 128), {"quality": 95, "subsampling": 0}, 55),
        ((96, 128), {"quality": 90, "progressive": True}, 48),
        ((96, 128), {"quality": 92, "subsampling": 1}, 45),
        ((95, 127), {"quality": 92}, 44),
    ],
    ids=["92", "75", "444", "progressive", "422", "cut blocks"],
)
@pytest.mark.parametrize("value", range(2, 9))
def test_a_jpeg_file_is_written_again_upright_nearly_without_loss(value, size, options, least):
    picture = PIL.Image.fromarray(photograph(*size))
    data = with_orientation(picture, "JPEG", value, icc_profile=b"a profile", **options)
    upright = images.upright_file(images.open_file(data))
    opened = images.open_file(upright)
    assert (images.orientation(opened), b"Exif" in upright, opened.info["icc_profile"]) == (1, False, b"a profile")
    assert psnr(images.pixels(images.open_file(data), upright=True), images.pixels(opened)) > least
    assert len(upright) < 1.6 * len(data)
    assert upright == images.upright_file(images.open_file(data))


def test_a_jpeg_file_for_print_stays_cmyk_upright():
    data = with_orientation(PIL.Image.fromarray(photograph(32, 48)).convert("CMYK"), "JPEG", 6, quality=95)
    opened = images.open_file(images.upright_file(images.open_file(data)))
    assert (opened.mode, opened.size) == ("CMYK", (32, 48))
    assert psnr(images.pixels(images.open_file(data), upright=True), images.pixels(opened)) > 45


def with_broken_pixels(data):
    """Returns a PNG file whose chunks are whole, but not the compressed pixels in them."""
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    content = bytearray(data[start : start + 4 + length])
    content[4 + length * 3 // 10] ^= 0x55
    return data[:start] + content + struct.pack(">I", zlib.crc32(content)) + data[start + 8 + length :]


def test_to_look_for_an_orientation_decodes_nothing():
    opened = images.open_file(with_broken_pixels(file_of(photograph(64, 64), "PNG")))
    assert images.orientation(opened) == 1
    images.decode_scaled(opened, (16, 16))
    assert images.upright_size(opened) == (64, 64)
    with pytest.raises(BadImageError, match="the image cannot be decoded"):
        images.pixels(opened)


@pytest.mark.parametrize("kind", ["eXIf", "tEXt"])
def test_an_orientation_behind_a_png_files_pixels_counts(kind, colour):
    whole = with_orientation(colour, "PNG", 6)
    start = whole.index(b"eXIf") - 4
    (length,) = struct.unpack(">I", whole[start : start + 4])
    chunk, rest = whole[start : start + 12 + length], whole[:start] + whole[start + 12 + length :]
    if kind == "tEXt":
        content = b'tEXtXML:com.adobe.xmp\0<x tiff:Orientation="6"/>'
        chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    opened = images.open_file(rest[:-12] + chunk + rest[-12:])
    assert images.orientation(opened) == 6
    assert (images.pixels(opened, upright=True) == np.rot90(colour, -1)).all()


def test_damaged_exif_data_is_no_orientation(colour):
    opened = images.open_file(file_of(colour, "JPEG", exif=b"Exif\0\0MM\0*\0\0\xff\xff\0"))
    assert images.orientation(opened) == 1
    assert images.pixels(opened, upright=True).shape == colour.shape


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello", "0x68656c6c"),
        (b"\x89PNG\r\n\x1a\n", "begins as a PNG file, but its header is corrupt"),
        (png(0, 5), "begins as a PNG file, but its header is corrupt"),
        (png(2, 1, data=bytes(7), chunks=[(b"gAMA", b"")]), "begins as a PNG file, .*: unpack"),
        (png(2, 1, data=bytes(7), chunks=[(b"zTXt", b"k\0\1" + zlib.compress(b"x"))]), "PNG .* compression method 1"),
        (b"\xff\xd8\xff\xe0", "begins as a JPEG file"),
        (file_of(np.zeros((64, 64), np.uint8), "JPEG")[:-2], "JPEG file is cut short"),
        (half_of_zeros(), "JPEG file is cut short: its last [0-9,]+ bytes are zeros"),
        (png(2, 1, 8, 0, bytes(3)).replace(b"\x08\0\0\0\0", b"\x08\0\1\0\0"), "PNG|CRC"),
        (png(60_000, 60_000), "67108864 pixels"),
        (png(8193, 8192), "8193x8192 .* 67108864"),
        (png(1 << 26, 2), "67108864"),
        (file_of(np.zeros((2, 2), np.float32), "TIFF"), " F, not 8 or 16 "),
        (file_of(np.zeros((2, 2), np.int32), "TIFF"), " I, not 8 or 16 "),
        (file_of(np.zeros((2, 2), np.uint8), "TIFF", tiffinfo={254: 1}), "raw file"),
        (file_of(np.zeros((2, 2), np.uint8), "TIFF", tiffinfo={50706: b"\1\4\0\0"}), "raw file"),
        (png(2, 1, 8, 0, bytes(3))[:-12], "PNG .* cut"),
        (png(2, 1, 8, 0, bytes(3))[:-1], "PNG .* cut"),
        (png(2, 1, 8, 0, bytes(3))[:-1] + b"x", "CRC .*'IEND'"),
    ],
)
def test_what_is_no_image_that_can_be_used(data, reason):
    with pytest.raises(BadImageError, match=reason):
        images.open_file(data)


def grey_and_colour_of_16_bits():
    """Returns pixels of 16 bits, grey (3, 4) and colour (3, 4, 3), and their PNG files."""
    draw = np.random.default_rng(2)
    grey, colour = draw.integers(0, 1 << 16, (3, 4), np.uint16), draw.integers(0, 1 << 16, (3, 4, 3), np.uint16)
    files = [
        png(4, 3, 16, kind, b"".join(b"\0" + row.tobytes() for row in values.astype(">u2")))
        for kind, values in ((0, grey), (2, colour))
    ]
    return grey, colour, *files


def test_of_16_bits_the_upper_eight_are_taken_as_tensorflow_does():
    grey, colour, grey_png, colour_png = grey_and_colour_of_16_bits()
    assert (decoded(grey_png)[..., 0] == grey >> 8).all()
    assert (decoded(colour_png) == colour >> 8).all()
    assert (decoded(grey_png, 3) == (grey >> 8)[..., None]).all()
    for kind, options in (("TIFF", {}), ("TIFF", {"compression": "tiff_deflate"}), ("JPEG2000", {})):
        assert (decoded(file_of(grey, kind, **options))[..., 0] == grey >> 8).all()
    assert (decoded(file_of(grey, "TIFF", tiffinfo={262: 0}))[..., 0] == 255 - (grey >> 8)).all()  # white is zero
    tensorflow = pytest.importorskip("tensorflow")
    for data in (grey_png, colour_png):
        assert (tensorflow.io.decode_png(data).numpy() == decoded(data)).all()


@pytest.mark.parametrize("most", [65535, 4095])
@pytest.mark.parametrize("kind", ["P5", "P2"])
def test_of_a_pgm_file_of_16_bits_the_upper_eight_are_taken(kind, most):
    values = np.array([[0, most // 2, most], [most // 3, 1, most - 1]], ">u2")
    content = values.tobytes() if kind == "P5" else " ".join(map(str, values.ravel())).encode()
    found = decoded(f"{kind}\n3 2\n{most}\n".encode() + content)
    assert found.shape == (2, 3, 1)
    assert (found[..., 0] == np.round(values / most * 65535).astype(int) >> 8).all()


def test_a_jpeg_file_that_tensorflow_does_not_decode_is_not_kept():
    data = file_of(photograph(32, 32), "JPEG")
    lossless = data.replace(b"\xff\xc0", b"\xff\xc3", 1)  # as far as its marker says
    assert images.kept_as(images.open_file(data), data) == "jpeg"
    assert images.kept_as(images.open_file(data), lossless) is None


def test_a_jpeg_file_of_inks_that_may_be_inverted_or_not_is_not_kept():
    stream = io.BytesIO()
    PIL.Image.fromarray(photograph(32, 32)).convert("CMYK").save(stream, "JPEG")
    data = stream.getvalue()
    unsaid = data.replace(b"Adobe", b"Other")
    assert images.kept_as(images.open_file(data), data) == "jpeg"
    assert images.kept_as(images.open_file(unsaid), unsaid) is None


def test_of_12_bits_the_upper_eight_are_taken():
    tags = ((256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3))
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    data = b"II*\0\x0c\0\0\0\xab\xc1\x23\0" + struct.pack("<H", len(tags)) + entries + bytes(4)
    assert decoded(data).ravel().tolist() == [0xAB, 0x12]


def test_a_damaged_chunk_that_decoding_does_not_need_is_passed_over(colour):
    whole = file_of(colour, "PNG")
    title = struct.pack(">I4s3sI", 3, b"tEXt", b"a\0b", 0)
    assert (decoded(whole[:-12] + title + whole[-12:]) == colour).all()


def test_avif_is_read_nearly(colour):
    ramp = np.repeat(np.add.outer(np.arange(40), np.arange(30))[..., None].astype(np.uint8) * 3, 3, axis=2)
    assert np.abs(decoded(file_of(ramp, "AVIF", quality=100)).astype(int) - ramp).max() <= 3


def test_heic_is_read_where_pillow_heif_is_installed():
    pytest.importorskip("pillow_heif").register_heif_opener()
    ramp = np.repeat(np.add.outer(np.arange(40), np.arange(30))[..., None].astype(np.uint8) * 3, 3, axis=2)
    data = file_of(ramp, "HEIF", quality=90)
    assert np.abs(decoded(data).astype(int) - ramp).max() <= 6
    assert images.kept_as(images.open_file(data), data) is None


def test_heic_without_pillow_heif_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    images._readable.cache_clear()
    monkeypatch.delitem(PIL.Image.OPEN, "HEIF", raising=False)
    try:
        with pytest.raises(BadImageError, match=r"HEIC .*'stepfeed\[images\]'"):
            images.open_file(b"\0\0\0\x18ftypheic" + bytes(100))
    finally:
        images._readable.cache_clear()


def test_the_largest_image_that_is_read():
    image = images.open_file(png(8192, 8192, 1, 0, bytes(8192 * 1025)))
    assert images.pixels(image).shape == (8192, 8192, 1)


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_a_text_that_unpacks_to_200_mib_is_refused_in_little_memory(name):
    begin = b"a\0\1\0\0\0" if name == b"iTXt" else b"a\0\0"
    data = png(2, 1, data=bytes(7), chunks=[(name, begin + zlib.compress(bytes(200 << 20)))])
    tracemalloc.start()
    with pytest.raises(BadImageError, match="Decompressed data too large"):
        images.open_file(data)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "JPEG2000", "AVIF", "PPM"])
def test_a_file_cut_anywhere_is_bad_or_whole(kind, pixels):
    data = file_of(pixels(1, (33, 31, 3))[0], kind)
    whole, bad = decoded(data), 0
    for length in range(0, len(data), 7):
        try:
            assert (decoded(data[:length]) == whole).all()  # what was cut is not a pixel
        except BadImageError:
            bad += 1
    assert bad >= 0.9 * len(range(0, len(data), 7))


def mutated(data, draw):
    out = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(min(len(out), draw.choice([40, 200, len(out)])))
        kind = draw.randrange(4)
        if kind == 0:
            out[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            out[place : place + draw.randrange(1, 9)] = draw.randbytes(draw.randrange(9))
        elif kind == 2:
            out[place:place] = out[place : place + draw.randrange(64)]
        else:
            del out[place : place + draw.randrange(1, 50)]
        if not out:
            return b""
    return bytes(out)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "JPEG2000", "AVIF", "PPM"])
def test_mutated_files_are_bad_or_pixels_at_once_and_without_a_warning(kind, pixels):
    draw, reasons = random.Random(kind), []
    originals = [file_of(image, kind) for image in pixels(3, (40, 30, 3))]
    if kind == "PNG":
        originals += [file_of(image[..., 0], kind) for image in pixels(3, (40, 30, 3))]
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(300):
            try:
                found = decoded(mutated(draw.choice(originals), draw), draw.choice([0, 1, 3]))
                assert found.dtype == np.uint8
                assert found.shape[2] in (1, 3)
                assert 0 < found.shape[0] * found.shape[1] <= images.MAX_PIXELS
            except BadImageError as error:
                reasons.append(str(error))
    assert len(reasons) > 20
    assert "\n" not in "".join(reasons)
    assert not warned
    assert time.monotonic() - began < 30


def test_grey_has_the_weights_of_itu_r_601(pixels):
    image = pixels(1, (50, 40, 3))[0]
    weighed = (image.astype(np.int64) @ [19595, 38470, 7471] + 0x8000) >> 16  # 0.299, 0.587, 0.114
    assert (images.with_channels(image, 1)[..., 0] == weighed).all()
    assert (images.with_channels(images.with_channels(image, 1), 3) == weighed[..., None]).all()
    assert images.with_channels(image, 3) is image


@pytest.mark.parametrize("turn", [1, 3, 6, 8])
@pytest.mark.parametrize(
    ("size", "ratio"),
    [((50, 30), 1), ((26, 15), 1), ((25, 15), 2), ((13, 7), 2), ((12, 7), 4), ((6, 3), 8), ((1, 1), 8)],
)
def test_a_jpeg_is_decoded_at_the_smallest_size_that_is_enough(size, ratio, turn, pixels):
    stored = pixels(1, (30, 50, 3) if turn > 4 else (50, 30, 3))[0]
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = turn
    opened = images.open_file(file_of(stored, "JPEG", exif=exif))
    images.decode_scaled(opened, size)
    assert images.pixels(opened, upright=True).shape == (-(-50 // ratio), -(-30 // ratio), 3)


def test_other_formats_are_not_scaled(colour):
    opened = images.open_file(file_of(colour, "PNG"))
    images.decode_scaled(opened, (1, 1))
    assert (images.pixels(opened) == colour).all()


def resized_by_the_formula(image, size):
    """The bilinear filter, as wide as the reduction, in float64 (as tf.image.resize with antialias=True)."""
    for axis, new in enumerate(size):
        old = image.shape[axis]
        scale = old / new
        centres = (np.arange(new) + 0.5) * scale
        distance = np.abs(np.arange(old) + 0.5 - centres[:, None]) / max(scale, 1)
        weights = np.clip(1 - distance, 0, None)
        weights /= weights.sum(axis=1, keepdims=True)
        image = np.moveaxis(np.tensordot(weights, image, (1, axis)), 0, axis)
    return image


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(14, 14), (7, 31), (40, 60), (1, 1), (28, 20)])
def test_resized_is_the_antialiased_bilinear_filter(size, channels, pixels):
    image = pixels(1, (28, 30, channels))[0]
    found = images.resized(image, size)
    assert found.shape == (*size, channels)
    assert np.abs(found - resized_by_the_formula(image.astype(np.float64), size)).max() <= 1.01


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_pixels_and_a_jpeg_nearly(channels, pixels):
    image = pixels(1, (20, 17, channels))[0]
    ramp = np.repeat(np.add.outer(np.arange(20), np.arange(17))[..., None].astype(np.uint8) * 6, channels, axis=2)
    assert (decoded(images.encoded(image, "png")) == image).all()
    assert np.abs(decoded(images.encoded(ramp, "jpeg")).astype(int) - ramp).max() <= 5
    for kind in ("png", "jpeg"):
        assert images.encoded(image, kind) == images.encoded(image.copy(), kind)
        data = images.encoded(image, kind)
        assert images.kept_as(images.open_file(data), data) == kind


def test_to_look_at_bytes_stay_floats_are_stretched_and_grey_becomes_rgb():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(images.as_pixels(pixels), pixels)
    np.testing.assert_array_equal(images.as_pixels(np.array([[[-2.0], [0.0], [2.0]]])), [[[0], [128], [255]]])
    np.testing.assert_array_equal(images.as_pixels(np.ones((1, 2, 1))), 0)
    assert images.as_rgb(np.full((2, 3, 1), 7, np.uint8)).tolist() == [[[7, 7, 7]] * 3] * 2


def test_letters_with_marks_are_drawn_by_a_font_that_has_them():
    own = images.lettering("cat", 14)
    assert (own[0], own[1].getname()) == ("cat", PIL.ImageFont.load_default(14).getname())
    text, font = images.lettering("Mäuse, żółw", 14)
    if font.getname() == own[1].getname():
        pytest.skip("no font of Latin letters is installed")
    assert text == "Mäuse, żółw"
    assert bytes(font.getmask("ä")) != bytes(font.getmask("\uffff"))
    assert images.lettering(unicodedata.normalize("NFD", text), 14)[0] == text


def test_without_a_font_letters_lose_their_marks(monkeypatch):
    monkeypatch.setattr(images, "_FONTS", ())
    monkeypatch.setattr(images, "_font_of_matplotlib", lambda: "/none.ttf")
    images.lettering.cache_clear()
    try:
        assert images.lettering("Mäuse 鼠", 14)[0] == "Mause ?"
    finally:
        images.lettering.cache_clear()


def test_the_nearest_pixel_is_the_one_at_the_centre():
    mask = np.arange(24, dtype=np.uint8).reshape(6, 4, 1)
    assert images.nearest(mask, (2, 4))[..., 0].tolist() == [[4, 5, 6, 7], [16, 17, 18, 19]]
    assert images.nearest(mask, (3, 2))[..., 0].tolist() == [[5, 7], [13, 15], [21, 23]]
    assert images.nearest(mask, (12, 8))[..., 0].tolist() == mask[..., 0].repeat(2, 0).repeat(2, 1).tolist()


def test_a_grey_mask_of_few_bits_is_refused_as_decoders_stretch_its_values():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header, rows = struct.pack(">IIBBBBB", 2, 2, 4, 0, 0, 0, 0), zlib.compress(b"\0\x12\0\x34")
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    with pytest.raises(BadImageError, match="of 4 bits"):
        images.classes_of(file)
