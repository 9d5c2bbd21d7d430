"""Spark: the session, the fetch in the executors, the batch that cannot change, and the sinks."""
