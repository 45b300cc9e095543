"""`make soak`: processes that call at random, are killed and stopped, and a judge."""
