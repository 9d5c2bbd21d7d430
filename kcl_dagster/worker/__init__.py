"""A worker: the leases that it holds, the batches in which it stores records, its start and its stop."""
