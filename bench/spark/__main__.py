"""python -m bench.spark: see bench.spark.jobs."""

from __future__ import annotations

import sys

from bench.spark.jobs import main

sys.exit(main(sys.argv[1:]))
