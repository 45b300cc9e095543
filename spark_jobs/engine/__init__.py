"""How logs are read and their partial results brought together: in this process, or by Spark."""
