"""The use of Spark: the session, the fetch in the executors, fetched records that cannot change, and the sinks."""
