# SPDX-License-Identifier: Apache-2.0
"""Images whose pixels are made when they are needed.

`images.open` returns a `LazyJpeg` instead of Pillow's JpegImageFile. It is one in every respect, but `load` only reads
and checks the file, and convert, crop, resize, transpose and copy only note what is to be done, and return a
`LazyImage`. Whatever needs pixels asks for `im`, Pillow's own object with the pixels. Then they are made, with all
noted steps in one go, and the image becomes an ordinary image of Pillow's: its class is exchanged.

Arguments that are not certain to be right, and everything else that an image can do, are left to Pillow, so its errors
are raised where it raises them.
"""

from __future__ import annotations

import operator
import struct
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace import _core
from headrace.images import _counts, _steps
from headrace.images._note import EncodedImage, Note
from headrace.images._selftest import verdict

_MODES = {1: "L", 3: "RGB"}
_PIECE_BYTES = 1 << 20
_TRUNCATED = "it is truncated"  # the beginning of what src/image/scan.c says of a file that ends too early
_MOST_UNUSED = 4096  # bytes after the end of the image
_FLOATS = struct.Struct("4f")


class _Access:
    """Stands for Pillow's PixelAccess, which `load` returns; makes the pixels when one of them is asked for."""

    __slots__ = ("_image",)

    def __init__(self, image: Any) -> None:
        self._image = image

    def _load(self) -> Any:
        _settle(self._image)
        return self._image.load()

    def __getitem__(self, place: Any) -> Any:
        return self._load()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._load()[place] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)


def note_of(image: Any) -> Note | None:
    """Returns the note of an image that was read and whose pixels have not been made; None for all others."""
    return image.__dict__.get("_headrace_note") if isinstance(image, _Lazy) else None


def _settle(image: Any) -> None:
    """Makes the image an ordinary image of Pillow's, with its pixels if it was loaded."""
    note = note_of(image)
    _become_ordinary(image, None if note is None else note.core())


def _become_ordinary(image: Any, core: Any = None) -> None:
    """Exchanges the class of a lazy image. If two threads do that at the same time, the first one's pixels stay."""
    kind = type(image)
    if issubclass(kind, _Lazy):
        image.__dict__.setdefault("_im", core)
        image.__class__ = kind._headrace_ordinary
        image.__dict__.pop("_headrace_note", None)


def make_lazy(image: Any) -> None:
    """Exchanges the class of a JPEG file that Pillow has opened."""
    del image._im  # a lazy image has none, so that threads can agree on it
    image.__class__ = LazyJpeg


def _derive(image: Any, note: Note, step: bytes, size: tuple[int, int], mode: str, weights: bytes = b"") -> Any:
    """Returns a new image with one more step, and with the other attributes that Pillow gives to results."""
    new = LazyImage()
    del new._im
    new._headrace_note = note.then(step, size, mode, weights)
    new._mode, new._size = mode, size
    new.info = image._copy_info() if hasattr(image, "_copy_info") else image.info.copy()
    return new


def then(image: Any, step: bytes, weights: bytes = b"") -> Any:
    """Returns a new lazy image with one more step that keeps size and mode. The image has a note."""
    note = note_of(image)
    assert note is not None
    return _derive(image, note, step, note.size, note.mode, weights)


class _Lazy:
    """The methods of both classes. An image has no `_headrace_note` as long as its file has not been read."""

    headrace_lazy = True  # what keeps samples makes the pixels first
    _headrace_note: Note
    _headrace_ordinary: type
    _im: Any = None  # as Pillow's, which looks whether there are pixels

    def _headrace_read(self) -> Note | None:
        """Returns the note, after reading the file if that is still to be done. None: the image is ordinary now."""
        return note_of(self)

    def load(self) -> Any:
        if self._headrace_read() is None:
            return self.load()  # the class is another one now
        return _Access(self)

    @property
    def im(self) -> Any:
        if note_of(self) is not None:
            _settle(self)
        return Image.Image.im.fget(self)

    @im.setter
    def im(self, core: Any) -> None:
        _become_ordinary(self)
        self.im = core

    # ---- operations that are only noted ----

    def convert(
        self,
        mode: Any = None,
        matrix: Any = None,
        dither: Any = None,
        palette: Any = Image.Palette.WEB,
        colors: Any = 256,
    ) -> Any:
        note = self._headrace_read()
        if note is not None and not matrix and "transparency" not in self.info:  # type: ignore[attr-defined]
            if not mode or mode == note.mode:
                return _derive(self, note, _steps.NONE, note.size, note.mode)
            if mode in ("L", "RGB") and verdict().convert:
                return _derive(self, note, _steps.convert(mode), note.size, mode)
        return _do(self, "convert", mode, matrix, dither, palette, colors)

    def copy(self) -> Any:
        note = self._headrace_read()
        return _do(self, "copy") if note is None else _derive(self, note, _steps.NONE, note.size, note.mode)

    __copy__ = copy

    def crop(self, box: Any = None) -> Any:
        if box is None:
            return self.copy()
        edges = _edges_of(box)
        if edges is None or not verdict().crop:
            return _do(self, "crop", box)
        note = self._headrace_read()
        if note is None:
            return _do(self, "crop", box)
        size = (edges[2] - edges[0], edges[3] - edges[1])
        return _derive(self, note, _steps.crop(*edges), size, note.mode)

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        wanted = _size_of(size)
        number = _steps.BICUBIC if resample is None else _filter_of(resample)
        if wanted is None or number is None or reducing_gap is not None:
            return _do(self, "resize", size, resample, box, reducing_gap)
        area = _area_of(box, self.size)  # type: ignore[attr-defined]
        passes = verdict().passes
        if area is None or passes is None:
            return _do(self, "resize", size, resample, box, reducing_gap)
        note = self._headrace_read()
        if note is None:
            return _do(self, "resize", size, resample, box, reducing_gap)
        if wanted == note.size and area == (0, 0, *wanted):
            return _derive(self, note, _steps.NONE, note.size, note.mode)
        return _derive(self, note, _steps.resize(*wanted, number, passes, area), wanted, note.mode)

    def transpose(self, method: Any) -> Any:
        number = _method_of(method)
        if number is None or not verdict().transpose:
            return _do(self, "transpose", method)
        note = self._headrace_read()
        if note is None:
            return _do(self, "transpose", method)
        width, height = note.size
        size = (height, width) if number in _steps.SWAPPING else (width, height)
        return _derive(self, note, _steps.transpose(number), size, note.mode)

    # ---- pixels as bytes, without Pillow's object ----

    @property
    def __array_interface__(self) -> dict[str, Any]:
        note = self._headrace_read()
        if note is None:
            return self.__array_interface__
        width, height = note.size
        shape = (height, width) if note.mode == "L" else (height, width, 3)
        return {"version": 3, "data": note.packed(), "shape": shape, "typestr": "|u1"}

    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        note = self._headrace_read()
        if note is None or encoder_name != "raw" or args not in ((), ((),)):
            return _do(self, "tobytes", encoder_name, *args)  # type: ignore[no-any-return]
        return note.packed()

    # ---- operations for which the class matters ----

    def close(self) -> None:
        _become_ordinary(self)
        self.close()  # Pillow's

    def __reduce_ex__(self, protocol: Any) -> Any:
        _settle(self)
        return self.__reduce_ex__(protocol)

    def __eq__(self, other: object) -> bool:
        _settle(self)
        _settle(other)
        return bool(self == other)

    __hash__ = None  # type: ignore[assignment] # as Pillow's


def _do(image: Any, method: str, *arguments: Any) -> Any:
    """Calls Pillow's method on the image, which becomes an ordinary one."""
    _settle(image)
    return getattr(image, method)(*arguments)


class LazyImage(_Lazy, Image.Image):
    """The result of an operation on a lazy image."""

    _headrace_ordinary = Image.Image


class LazyJpeg(_Lazy, JpegImageFile):
    """A JPEG file that was opened, and perhaps read, but not decoded."""

    _headrace_ordinary = JpegImageFile

    def _headrace_read(self) -> Note | None:
        note = note_of(self) or _read(self)
        if note is None:
            _become_ordinary(self)
        else:
            self.__dict__.setdefault("_headrace_note", note)
        return note

    def draft(self, mode: Any, size: Any) -> Any:
        if note_of(self) is None:
            _become_ordinary(self)
        return JpegImageFile.draft(self, mode, size)

    def verify(self) -> Any:
        if note_of(self) is None:
            _become_ordinary(self)
        return JpegImageFile.verify(self)


def _read(image: Any) -> Note | None:
    """Reads and checks the file of an image that Pillow has opened, and leaves the image as Pillow's load does, but
    without pixels. Returns None, with the image unchanged, if Pillow is to load it.

    ImageFile.LOAD_TRUNCATED_IMAGES changes nothing here: it changes what Pillow does with files that are not complete,
    and those are Pillow's."""
    if image._im is not None or image.fp is None:
        return None
    plain = [("jpeg", (0, 0, *image.size), 0, (image.mode, ""))]
    if [tuple(tile) for tile in image.tile] != plain or image.decoderconfig:
        _counts.leave(f"its mode is {image.mode}" if image.mode not in _MODES.values() else "its draft was changed")
        return None
    image.fp.seek(0)
    data, picture = _read_picture(image.fp)
    if isinstance(picture, str):
        _counts.leave(picture.removeprefix("image: "))
        return None
    width, height, channels, used_bytes = picture.info
    if (width, height) != image.size or _MODES[channels] != image.mode:
        _counts.leave("Pillow reads another header")
        return None
    _finish_load(image)
    _counts.has_read(len(data))
    if len(data) - used_bytes > _MOST_UNUSED:  # a video or another image follows, which would be kept in memory too
        data = data[:used_bytes]
        picture = _core.Picture.open(data)
        assert not isinstance(picture, str)
    return Note(EncodedImage(picture, data), _steps.NONE, image.size, image.mode)


def _read_picture(file: Any) -> tuple[bytes, Any]:
    """Reads a file to the end of its image, in pieces: a video of any size may follow. Returns the bytes, and the
    picture or what is odd about it. C borrows the bytes, and a bytearray might change."""
    data, size = b"", _PIECE_BYTES
    while True:
        pieces = _read_pieces(file, size - len(data))
        data = b"".join([data, *pieces]) if data or len(pieces) != 1 else pieces[0]
        picture = _core.Picture.open(data)
        if len(data) < size or not isinstance(picture, str) or _TRUNCATED not in picture:
            return data, picture
        size *= 2


def _read_pieces(file: Any, count: int) -> list[bytes]:
    """Reads so many bytes, or all that there are. A file object may return fewer than it is asked for."""
    pieces: list[bytes] = []
    while count > 0 and (piece := bytes(file.read(count))):
        pieces.append(piece)
        count -= len(piece)
    return pieces


def _finish_load(image: Any) -> None:
    """Does what Pillow's load does after the last tile."""
    image.map = None
    image.tile = []
    image.readonly = 0
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None


# ---- arguments; None: Pillow decides ----


def _edges_of(box: Any) -> tuple[int, int, int, int] | None:
    """Returns the box of a crop, rounded as Pillow rounds it, if it is valid and not suspiciously large."""
    try:
        left, upper, right, lower = map(int, map(round, box))
        if box[2] < box[0] or box[3] < box[1]:
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    width, height = right - left, lower - upper
    limit = Image.MAX_IMAGE_PIXELS
    if not (0 < width <= _steps.MOST_SIDE and 0 < height <= _steps.MOST_SIDE):
        return None
    if max(abs(left), abs(upper), abs(right), abs(lower)) >= 2**31 or (limit is not None and width * height > limit):
        return None
    return left, upper, right, lower


def _size_of(size: Any) -> tuple[int, int] | None:
    try:
        width, height = map(operator.index, size)
    except (TypeError, ValueError):
        return None
    return (width, height) if 0 < width <= _steps.MOST_SIDE and 0 < height <= _steps.MOST_SIDE else None


def _filter_of(resample: Any) -> int | None:
    try:
        return operator.index(resample) if resample in _steps.FILTERS else None
    except TypeError:
        return None


def _method_of(method: Any) -> int | None:
    try:
        number = operator.index(method)
    except TypeError:
        return None
    return number if 0 <= number <= 6 else None


def _area_of(box: Any, size: tuple[int, int]) -> tuple[float, float, float, float] | None:
    if box is None:
        return 0, 0, *size
    try:
        left, upper, right, lower = _FLOATS.unpack(_FLOATS.pack(*box))  # as Pillow stores them
    except (TypeError, ValueError, OverflowError, struct.error):
        return None
    is_inside = left >= 0 and upper >= 0 and right <= size[0] and lower <= size[1]
    return (left, upper, right, lower) if is_inside and right - left > 1e-3 and lower - upper > 1e-3 else None
