"""The sinks, which store batches. Each stores the records of a part once, however often the part is written."""
