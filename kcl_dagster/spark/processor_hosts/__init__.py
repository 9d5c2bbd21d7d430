"""Processes of the executors in which record processors run for as long as this worker holds their shards.

A host is a Spark task that does not end. It connects to the worker, reads the shards that the worker names, calls
the processors in it with the records, and forwards their checkpoints. So records never leave the executor, a
processor keeps its state, and its checkpoint is written, or refused, before `checkpoint` returns. If a host ends,
Spark or the worker starts it again; its processors are created again at their checkpoints.
"""
