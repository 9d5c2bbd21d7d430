"""Other consumers of Kinesis in Python, each in a virtual environment of its own, reading the same streams."""
