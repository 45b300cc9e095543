"""Spark: sessions, the JVM, and logs as DataFrames."""
