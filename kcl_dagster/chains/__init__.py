"""Chains: how a worker decides what is stored, beside the data itself.

A chain is a sequence of numbered entries, each made with a conditional create: of several processes that try to
make an entry of one number, one succeeds. A chain belongs to one worker from the moment at which it begins the
chain. An entry publishes the staged files of one batch, or closes the chain.

    entry         what an entry says, and its form in a file
    store         entries in a store of files: create, read, list, delete
    chain         the owner's side: decide a batch
    settlement    the successor's side: close a chain, publish what was decided in it, learn how far it came
    publication   staged files, and how they get their final names
    table_commits which entries go into the next commit of a table
    deletion      chains that no lease names any more
"""
