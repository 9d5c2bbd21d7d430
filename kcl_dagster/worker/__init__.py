"""One worker: the leases it holds, the batches it makes of them, and how it starts and stops."""
