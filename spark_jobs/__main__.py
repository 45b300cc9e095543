"""``python -m spark_jobs JOB LOGS... --out DIR``."""

import sys

from spark_jobs.cli import main
from spark_jobs.engine.memory import keep_what_is_freed

keep_what_is_freed()
sys.exit(main())
