"""Processes of the executors in which record processors sit for as long as their shards are this worker's.

A seat is a Spark task that does not end: it connects to the worker, reads the shards it is told to read, hands the
records to the processors in it, and passes their checkpoints on. So records never leave the executor, a processor
keeps its state, and its checkpoint is written, or refused, before `checkpoint` returns. A seat that dies is started
again, by Spark or by the worker; the processors that sat in it are begun anew at their checkpoints.
"""
