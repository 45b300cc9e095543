"""The same core with crash points, in developer builds only."""

from pynotify._native import ffi as ffi
from pynotify._native import lib as lib
