"""Spark jobs over pynotify's latency logs (format ``pynlog v1``).

Pure Python: never imports the ``pynotify`` package or its extension, so that it runs on a cluster
from a zip. Logs are files on the disk of the host that wrote them.
"""
