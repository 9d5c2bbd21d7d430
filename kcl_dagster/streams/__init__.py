"""Kinesis: which shards there are, what is in them, and what the records contain."""
