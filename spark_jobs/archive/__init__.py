"""What ``ingest`` keeps of logs: Parquet files, by date and host."""
