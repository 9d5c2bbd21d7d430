"""Sinks, which store batches. Each sink stores the records of a part once, even if the part is written
repeatedly."""
