"""How Kinesis requests and replies are spelled: JSON, CBOR, event streams."""
