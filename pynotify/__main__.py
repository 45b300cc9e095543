"""``python -m pynotify``: the command line."""

import sys

from pynotify.cli.main import main

sys.exit(main())
