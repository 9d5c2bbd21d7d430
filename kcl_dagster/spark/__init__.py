"""Spark: the session, the fetch in the executors, batches that cannot change, and the sinks."""
