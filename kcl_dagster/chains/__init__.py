"""Chains: a worker's log of the batches that it has committed, kept in the sink beside the data.

A chain is a sequence of numbered entries. Each entry is a file that is made with a conditional create: if several
processes try to make an entry with the same number, exactly one succeeds. An entry either decides that the staged
files of one batch will be published (the batch is then "decided"), or closes the chain. Only the worker that began
a chain decides batches in it. The row of a lease names the chain that may have entries for the lease. This name is
the "claim". A worker that gets the lease from another one first "settles" the chain: it closes the chain and
publishes the decided batches.

    entry         the contents of an entry, and their form in a file
    store         create, read, list and delete entries in a store of files
    chain         used by the owner: decide a batch
    settlement    used by the successor: close a chain, publish its decided batches, find each lease's progress
    publication   staged files, and how they get their final names
    table_commits which entries go into the next commit of a table
    deletion      delete chains that no lease names any more
"""
