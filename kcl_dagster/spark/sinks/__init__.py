"""Where batches go. Each sink stores the records of a part once, however often the part is written."""
