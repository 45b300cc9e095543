"""numpy arrays as bytes.  Only the processes of a segment speak this; others get a .npy file.

1. A container of `&` is an array: a kind, the length of its description, then the description.
   Behind that stand its bytes (INLINE), or where they are (SHARED, _shared.py).
2. The description is the text of (dtype as .npy files have it, shape, order): what a stream of
   frames repeats, so both sides keep those they have seen.
3. Bytes are in the order of memory, C or Fortran; what is in neither is copied into C order.
4. Objects behind pointers are refused on both sides: a pointer is of one process.
5. A container has a 0 among its first bytes, which PostgreSQL refuses, so no array passes a bridge;
   on a channel that one sends on, and over PostgreSQL, an array is the bytes of a .npy file.
"""

from __future__ import annotations

import ast
import io
import struct
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynotify.pubsub._format import Malformed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

ARRAY: Final = b"&"
_INLINE, _SHARED = 0, 1
_HEAD = struct.Struct("<cBH")
_PLACE = struct.Struct("<IIQQQQ")
_LONGEST = 1 << 16


class Layout(NamedTuple):
    """What a description says.  `order` is C or F."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: str
    #: Bytes of the whole array.
    size: int


class Place(NamedTuple):
    """Where an array is: a block of an arena, and how often that arena has been written to.

    `dropped` counts the blocks that the arena has removed; `lock_file` is the inode of the file
    on which its owner looks for locks.
    """

    arena: int
    number: int
    generation: int
    dropped: int
    lock_file: int
    size: int


class Reference(NamedTuple):
    """An array that has not been looked for yet, and the commit with which it came."""

    place: Place
    layout: Layout
    commit: int = 0


def is_array(obj: object) -> bool:
    """Whether it is a numpy array.  Imports nothing: without numpy there are none."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, getattr(numpy, "ndarray", ()))


def checked(obj: Any) -> Array:
    """The array as a plain one.  TypeError for what its bytes do not say."""
    import numpy as np  # noqa: PLC0415

    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(obj, masked.MaskedArray):
        raise TypeError("a masked array cannot be sent: send its data and its mask")
    if obj.dtype.hasobject or obj.dtype.isbuiltin > 1:
        raise TypeError(
            f"an array of {obj.dtype} cannot be sent: its bytes mean nothing to other processes"
        )
    return np.asarray(obj)


def describe(array: Array) -> bytes:
    """The description."""
    return _description(array.dtype, array.shape, order_of(array))


@lru_cache(maxsize=64)
def _description(dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> bytes:
    from numpy.lib import format as npy  # noqa: PLC0415

    description = repr((npy.dtype_to_descr(dtype), shape, order)).encode("ascii")
    if len(description) >= _LONGEST:
        raise TypeError("an array whose dtype has so many fields cannot be sent")
    return description


def order_of(array: Array) -> str:
    """That in which its bytes are sent."""
    flags = array.flags
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


def inline(array: Array) -> bytes:
    """The container of an array that goes in the message itself."""
    description = describe(array)
    order: Any = order_of(array)
    head = _HEAD.pack(ARRAY, _INLINE, len(description))
    return b"".join((head, description, array.tobytes(order)))


def reference_size(description: bytes) -> int:
    """Bytes of what refer() returns."""
    return _HEAD.size + len(description) + _PLACE.size


def refer(place: Place, description: bytes) -> bytes:
    """The container of one that is in a block."""
    return _HEAD.pack(ARRAY, _SHARED, len(description)) + description + _PLACE.pack(*place)


def portable(obj: Any) -> Any:
    """The object as peers elsewhere understand it: an array is the bytes of its .npy file."""
    if not is_array(obj):
        return obj
    from numpy.lib import format as npy  # noqa: PLC0415

    file = io.BytesIO()
    npy.write_array(file, checked(obj), allow_pickle=False)
    return file.getvalue()


def decode(whole: bytes) -> Array | Reference:
    """The array in a container of `&`, read-only.  Raises `Malformed`."""
    import numpy as np  # noqa: PLC0415

    if len(whole) < _HEAD.size:
        raise Malformed("an array without its head")
    _, kind, length = _HEAD.unpack_from(whole)
    start = _HEAD.size + length
    layout = _layout(whole[_HEAD.size : start])
    size = len(whole) - start
    if kind == _SHARED and size == _PLACE.size:
        place = Place(*_PLACE.unpack_from(whole, start))
        if place.size == layout.size:
            return Reference(place, layout)
    elif kind == _INLINE and size == layout.size:
        order: Any = layout.order
        return np.ndarray(layout.shape, layout.dtype, whole, start, order=order)
    raise Malformed("an array that is not as its description says")


@lru_cache(maxsize=64)
def _layout(description: bytes) -> Layout:
    from numpy.lib import format as npy  # noqa: PLC0415

    try:
        descr, shape, order = ast.literal_eval(description.decode("ascii"))
        dtype = npy.descr_to_dtype(descr)
        if not isinstance(shape, tuple) or order not in ("C", "F") or dtype.hasobject:
            raise ValueError("not what an array has")
        size = dtype.itemsize
        for length in shape:
            if type(length) is not int or length < 0:
                raise ValueError("not a shape")
            size *= length
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, KeyError) as error:
        raise Malformed(f"the description of an array: {error}") from None
    return Layout(dtype, shape, order, size)
