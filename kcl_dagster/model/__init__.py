"""The facts of the lease protocol as values. No I/O, no clock."""
