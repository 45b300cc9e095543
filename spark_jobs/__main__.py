"""``python -m spark_jobs JOB LOGS... --out DIR``."""

import sys

from spark_jobs.cli import main

sys.exit(main())
