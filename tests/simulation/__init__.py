"""A whole fleet in one thread: real decisions, made-up time, faults on purpose, every property checked.

The processes of the fleet run the package's own code as greenlets. Each call of an AWS client, each sleep and each
wait for a lock is a point where another one may go on. One seed decides everything, so one seed is one run.
"""
