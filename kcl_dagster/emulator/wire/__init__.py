"""The encodings of Kinesis requests and replies: JSON, CBOR, event streams."""
