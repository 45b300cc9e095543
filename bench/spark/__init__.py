"""The Spark jobs against numpy: ``python -m bench.spark``."""
