"""What is called for every message, in C: native/python, a module in the extension's file.

One file holds both, so that both call the same core; PEP 489 lets a file have several modules.
"""

import os
import threading
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader

from pynotify._ffi import native_file

_loader = ExtensionFileLoader(__name__, native_file)
_spec = spec_from_loader(__name__, _loader)
assert _spec is not None
_module = module_from_spec(_spec)
_loader.exec_module(_module)

AT_ONCE = _module.AT_ONCE
AT_ONCE_BYTES = _module.AT_ONCE_BYTES
Batch = _module.Batch
Columns = _module.Columns
Counter = _module.Counter
Election = _module.Election
Inlet = _module.Inlet
Lock = _module.Lock
Notifier = _module.Notifier
Notify = _module.Notify
Parts = _module.Parts
Pending = _module.Pending
Port = _module.Port
Publisher = _module.Publisher
cut_parts = _module.cut_parts
finalizer = _module.finalizer
join = _module.join
map_shared = _module.map_shared
Taker = _module.Taker
ring = _module.ring
run_of_parts = _module.run_of_parts
sleep_until_called = _module.sleep_until_called
wait = _module.wait

_module.begin_sleeps(threading.main_thread().ident)
os.register_at_fork(after_in_child=_module.sleeps_after_fork)
