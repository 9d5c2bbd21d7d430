"""Kinesis: the shards of a stream, their records, and the content of the records."""
