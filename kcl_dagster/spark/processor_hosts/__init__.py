"""Hosts: executor processes in which record processors run as long as the worker owns their shards.

A host is a Spark task that does not end. It connects to the worker, reads the shards that the worker names, calls
its processors with the records, and forwards their checkpoints. So records never leave the executor, a processor
keeps its state, and its checkpoint is written or rejected before `checkpoint` returns. If a host ends, Spark or the
worker starts it again. Its processors are created again, and continue at their last checkpoints.
"""
