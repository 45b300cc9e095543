"""``python -m pynotify.demo``."""

import sys

from pynotify.demo.cli import main

sys.exit(main())
