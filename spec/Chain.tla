------------------------------- MODULE Chain -------------------------------
(***************************************************************************)
(* Two shards, their leases, the workers that come to own them, the chains *)
(* of entries in which workers decide what is stored, and the files.       *)
(*                                                                         *)
(* A chain belongs to one incarnation of a worker. Entry n of a chain is   *)
(* made by a conditional create: the first one of a number remains. It     *)
(* publishes the staged files of one batch, or closes the chain. The       *)
(* creates on the way are `wire`: one may arrive late, after its sender    *)
(* has given up or died, or never; its answer may be lost.                 *)
(*                                                                         *)
(* The row of a lease names the chain that may have entries for it (the    *)
(* claim). Writes to rows are conditional on owner and counter, `moves`    *)
(* here; that this is enough is shown by ExactlyOnce.tla.                  *)
(*                                                                         *)
(* The code: kcl_dagster/chains/chain.py, chains/settlement.py,            *)
(* chains/publication.py, chains/deletion.py, worker/claims.py.            *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
    Workers,
    Leases,          \* each shard has one record
    None,
    MostMoves,       \* bound: changes of an owner and resets, of all leases together
    MostChains,      \* bound: chains of one worker
    MostRestarts,    \* bound: chains that are begun after the first ones, by all workers together
    MostBatches,     \* bound: batches of one chain
    MostOnTheWire,
    \* What keeps it right. Each can be switched off, to see that it is needed.
    ClaimComesFirst,       \* an entry names only leases whose rows name its chain
    CloseComesFirst,       \* a claim follows the closing of the chain that the row named
    ProgressIsRead,        \* a claim goes on behind the entries of that chain
    DecisionComesFirst,    \* files are published after their entry was made
    PublicationComesFirst, \* a checkpoint is written after the files were published
    FailureIsNotGuessed,   \* after a lost answer, an entry of one's own is recognised
    SuccessIsNotGuessed,   \* after a lost answer, an entry of another process is recognised
    LastEntryIsKept,       \* the last entry of an open chain is not deleted
    StagedGoFirst,         \* what is staged for a chain is removed before its entries
    ResetEndsClaim,        \* a reset makes the entries of the claim no progress
    LeaveIsExclusive       \* a lease is not handed over while an entry for it is being made

Chains == Workers \X (1..MostChains)
Batches == Chains \X (1..MostBatches)
ChainOf(b) == b[1]
Writer(c) == c[1]
Alike == Permutations(Workers) \union Permutations(Leases)   \* it makes no difference which one is which

VARIABLES
    row,      \* of each lease
    log,      \* of each chain: all entries that were made; `cut` of them are deleted again
    cut,
    worker,
    wire,
    staged, visible, decided,   \* sets of batches
    content                             \* of each batch: what it stores of each lease, Nothing for nothing
vars == <<row, log, cut, worker, wire, staged, visible, decided, content>>

Closed == <<<<None, 0>>, 0>>   \* like a batch, so that the two can be compared
Nothing == [reset |-> 0, claim |-> 0]
Idle(w, g) == [step |-> "idle", chain |-> <<w, g>>, batch |-> 0, next |-> 1,
               moves |-> [l \in Leases |-> 0], claim |-> [l \in Leases |-> 0], done |-> [l \in Leases |-> FALSE]]

(* One worker has claimed both leases: all of the rest follows from there. *)
Init ==
    \E w \in Workers :
        /\ row = [l \in Leases |-> [owner |-> w, moves |-> 1, chain |-> <<w, 1>>, claim |-> 1, done |-> FALSE,
                                    reset |-> 1]]
        /\ worker = [v \in Workers |->
                IF v = w THEN [Idle(v, 1) EXCEPT !.moves = [l \in Leases |-> 1], !.claim = [l \in Leases |-> 1]]
                ELSE Idle(v, 1)]
        /\ log = [c \in Chains |-> <<>>]
        /\ cut = [c \in Chains |-> 0]
        /\ wire = {} /\ staged = {} /\ visible = {} /\ decided = {}
        /\ content = [b \in Batches |-> [l \in Leases |-> Nothing]]

Last(c) == log[c][Len(log[c])]
IsClosed(c) == log[c] # <<>> /\ Last(c) = Closed
Gone(c) == IsClosed(c) /\ cut[c] = Len(log[c])
Entries(c) == {log[c][n] : n \in (cut[c] + 1)..Len(log[c])} \ {Closed}
Batch(w) == <<worker[w].chain, worker[w].batch>>
InBatch(w) == IF worker[w].step \in {"staged", "sent"}
              THEN {l \in Leases : content[Batch(w)][l] # Nothing} ELSE {}
Holds(w, l) == row[l].owner = w /\ row[l].moves = worker[w].moves[l]
RECURSIVE Begun(_)
Begun(some) == IF some = {} THEN 0
               ELSE LET w == CHOOSE w \in some : TRUE IN worker[w].chain[2] - 1 + Begun(some \ {w})
MayBegin == Begun(Workers) < MostRestarts
(* What a process finds that lists the chain, before it creates the entry after the last one. *)
Found(c) == IF cut[c] = Len(log[c]) THEN <<>> ELSE log[c]
(* The closing entry took the number of a deleted one, and closes nothing. *)
SeemsClosed(c) == Found(c) # log[c]

----------------------------------------------------------------------------
(* The leader, or several of them; an operator. *)

RECURSIVE Sum(_)
Sum(some) == IF some = {} THEN 0 ELSE LET l == CHOOSE l \in some : TRUE IN row[l].moves + Sum(some \ {l})
MayMove == Sum(Leases) < Cardinality(Leases) + MostMoves   \* each begins with 1

Assign(l, w) ==
    /\ MayMove /\ row[l].owner # w
    /\ row' = [row EXCEPT ![l].owner = w, ![l].moves = @ + 1]
    /\ UNCHANGED <<log, cut, worker, wire, staged, visible, decided, content>>

Reset(l) ==
    /\ MayMove /\ row[l].done
    /\ row' = [row EXCEPT ![l].owner = None, ![l].moves = @ + 1, ![l].done = FALSE, ![l].reset = @ + 1,
                          ![l].claim = IF ResetEndsClaim THEN 0 ELSE @]
    /\ UNCHANGED <<log, cut, worker, wire, staged, visible, decided, content>>

----------------------------------------------------------------------------
(* A worker gets a lease: it closes the chain that the row names, publishes what was decided there, and claims. *)

IsToClaim(w, l) ==
    /\ row[l].owner = w /\ l \notin InBatch(w)
    /\ worker[w].moves[l] # row[l].moves \/ worker[w].claim[l] = 0

Close(w, l) ==
    LET c == row[l].chain IN
    /\ IsToClaim(w, l)
    /\ c # None /\ ~IsClosed(c) /\ ~(c = worker[w].chain /\ worker[w].step # "idle")
    /\ IF Found(c) = log[c] THEN log' = [log EXCEPT ![c] = Append(@, Closed)]
       ELSE UNCHANGED log   \* another number was taken: the entry closes nothing
    /\ worker' = IF c = worker[w].chain
                 THEN [worker EXCEPT ![w].chain[2] = @ + 1, ![w].batch = 0, ![w].next = 1,
                                     ![w].claim = [k \in Leases |-> 0]]
                 ELSE worker
    /\ c = worker[w].chain => MayBegin
    /\ UNCHANGED <<row, cut, wire, staged, visible, decided, content>>

Claim(w, l) ==
    LET c == row[l].chain
        me == worker[w].chain
        stored == c # None /\ ProgressIsRead
                  /\ \E b \in Entries(c) : content[b][l] # Nothing /\ content[b][l].claim = row[l].claim
        done == row[l].done \/ stored IN
    /\ IsToClaim(w, l)
    /\ c # None => /\ CloseComesFirst => IsClosed(c) \/ SeemsClosed(c)
                   /\ Entries(c) \intersect staged = {}    \* published, and nothing of it is staged any more
    /\ c = me => ~CloseComesFirst
    /\ ~IsClosed(me)
    /\ row' = [row EXCEPT ![l].chain = me, ![l].claim = row[l].moves, ![l].done = done]
    /\ worker' = [worker EXCEPT ![w].moves[l] = row[l].moves, ![w].claim[l] = row[l].moves, ![w].done[l] = done]
    /\ UNCHANGED <<log, cut, wire, staged, visible, decided, content>>

----------------------------------------------------------------------------
(* A batch. *)

MayRead(w) ==
    {l \in Leases : \/ worker[w].claim[l] # 0 /\ ~worker[w].done[l]
                    \/ ~ClaimComesFirst /\ row[l].owner = w /\ worker[w].claim[l] = 0 /\ ~row[l].done}

Stage(w, some) ==
    LET b == <<worker[w].chain, worker[w].batch + 1>> IN
    /\ worker[w].step = "idle" /\ worker[w].batch < MostBatches
    /\ ~Gone(worker[w].chain)   \* it trusts a lease for a limited time, and a chain is deleted long after that
    /\ some # {} /\ some \subseteq MayRead(w)
    /\ staged' = staged \union {b}
    /\ content' = [content EXCEPT ![b] = [l \in Leases |->
            IF l \in some THEN [reset |-> row[l].reset, claim |-> worker[w].moves[l]] ELSE Nothing]]
    /\ worker' = [worker EXCEPT ![w].step = "staged", ![w].batch = @ + 1]
    /\ UNCHANGED <<row, log, cut, wire, visible, decided>>

Send(w) ==
    /\ worker[w].step = "staged"
    /\ \/ /\ Cardinality(wire) < MostOnTheWire
          /\ wire' = wire \union {[batch |-> Batch(w), number |-> worker[w].next]}
       \/ UNCHANGED wire   \* it never arrives
    /\ worker' = [worker EXCEPT ![w].step = "sent"]
    /\ UNCHANGED <<row, log, cut, staged, visible, decided, content>>

IsFree(c, number) == number > Len(log[c]) \/ number <= cut[c]

Decided(w) ==
    [worker EXCEPT ![w].step = "idle", ![w].next = @ + 1,
                   ![w].done = [l \in Leases |-> @[l] \/ content[Batch(w)][l] # Nothing]]
(* The chain has an end now: the worker begins another one, and claims its leases again. *)
Void(w) ==
    [worker EXCEPT ![w].step = "idle", ![w].batch = 0, ![w].next = 1, ![w].claim = [l \in Leases |-> 0],
                   ![w].chain[2] = @ + 1]

Make(c, number, b) ==
    IF number > Len(log[c])
    THEN log' = [log EXCEPT ![c] = Append(@, b)] /\ decided' = decided \union {b} /\ UNCHANGED cut
    ELSE UNCHANGED <<log, cut>> /\ decided' = decided \union {b}   \* the number was deleted: no process reads it

(* A create arrives. Its answer arrives as well, or does not. *)
Arrive(message) ==
    LET b == message.batch
        c == ChainOf(b)
        w == Writer(c)
        awaited == worker[w].step = "sent" /\ Batch(w) = b IN
    /\ wire' = wire \ {message}
    /\ UNCHANGED <<row, visible, content>>
    /\ IF IsFree(c, message.number)
       THEN /\ Make(c, message.number, b)
            /\ UNCHANGED staged
            /\ \/ awaited /\ worker' = Decided(w)
               \/ UNCHANGED worker
       ELSE /\ UNCHANGED <<log, cut, decided>>
            /\ \/ awaited /\ log[c][message.number] # b /\ MayBegin
                  /\ worker' = Void(w) /\ staged' = staged \ {b}
               \/ UNCHANGED <<worker, staged>>

(* No answer: the worker sends the create again, and reads the entry if there is one. *)
Repeat(w) ==
    LET b == Batch(w)
        c == worker[w].chain
        number == worker[w].next IN
    /\ worker[w].step = "sent"
    /\ UNCHANGED <<row, wire, visible, content>>
    /\ IF IsFree(c, number)
       THEN Make(c, number, b) /\ worker' = Decided(w) /\ UNCHANGED staged
       ELSE /\ UNCHANGED <<log, cut, decided>>
            /\ IF IF log[c][number] = b THEN FailureIsNotGuessed ELSE ~SuccessIsNotGuessed
               THEN worker' = Decided(w) /\ UNCHANGED staged
               ELSE MayBegin /\ worker' = Void(w) /\ staged' = staged \ {b}

Flush(w, l) ==
    /\ Holds(w, l) /\ worker[w].claim[l] # 0 /\ worker[w].done[l] /\ ~row[l].done
    /\ row[l].chain = worker[w].chain
    /\ PublicationComesFirst => Entries(worker[w].chain) \intersect staged = {}
    /\ row' = [row EXCEPT ![l].done = TRUE]
    /\ UNCHANGED <<log, cut, worker, wire, staged, visible, decided, content>>

(* A handoff: the row names no chain afterwards, so the next owner has nothing to settle. *)
Leave(w, l, to) ==
    /\ Holds(w, l) /\ worker[w].claim[l] # 0 /\ row[l].chain = worker[w].chain
    /\ row[l].done = worker[w].done[l]
    /\ LeaveIsExclusive => l \notin InBatch(w)
    /\ MayMove /\ to # w
    /\ row' = [row EXCEPT ![l].owner = to, ![l].moves = @ + 1, ![l].chain = None, ![l].claim = 0]
    /\ worker' = [worker EXCEPT ![w].moves[l] = 0, ![w].claim[l] = 0]
    /\ UNCHANGED <<log, cut, wire, staged, visible, decided, content>>

Die(w) ==
    /\ MayBegin
    /\ worker' = [worker EXCEPT ![w] = Idle(w, worker[w].chain[2] + 1)]
    /\ UNCHANGED <<row, log, cut, wire, staged, visible, decided, content>>

----------------------------------------------------------------------------
(* Files and entries, by the owner of the chain or by another process. *)

Publish(b) ==
    /\ b \in staged
    /\ DecisionComesFirst => b \in decided
    /\ visible' = visible \union {b} /\ staged' = staged \ {b}
    /\ UNCHANGED <<row, log, cut, worker, wire, decided, content>>

(* The first of the entries that are left, where all rows have what it says. *)
Cut(c) ==
    LET first == log[c][cut[c] + 1] IN
    /\ cut[c] < Len(log[c])
    /\ first # Closed
    /\ LastEntryIsKept => cut[c] + 1 < Len(log[c])
    /\ first \in visible /\ first \notin staged
    /\ \A l \in Leases : row[l].chain = c => content[first][l] = Nothing \/ row[l].done
    /\ cut' = [cut EXCEPT ![c] = @ + 1]
    /\ UNCHANGED <<row, log, worker, wire, staged, visible, decided, content>>

(* A closed chain that no row names, long after it was closed: its worker has given up whatever it had not staged
   by then, because it trusts a lease for a limited time. *)
Delete(c) ==
    /\ IsClosed(c) /\ ~Gone(c)
    /\ \A l \in Leases : row[l].chain # c
    /\ Entries(c) \intersect staged = {}
    /\ worker[Writer(c)].chain = c => worker[Writer(c)].step \in {"staged", "sent"}
    /\ staged' = IF StagedGoFirst THEN {b \in staged : ChainOf(b) # c} ELSE staged
    /\ cut' = [cut EXCEPT ![c] = Len(log[c])]
    /\ UNCHANGED <<row, log, worker, wire, visible, decided, content>>

Next ==
    \/ \E w \in Workers :
        \/ \E l \in Leases :
            \/ Assign(l, w) \/ Close(w, l) \/ Claim(w, l) \/ Flush(w, l)
            \/ \E to \in Workers : Leave(w, l, to)
        \/ \E some \in SUBSET Leases : Stage(w, some)
        \/ Send(w) \/ Repeat(w) \/ Die(w)
    \/ \E l \in Leases : Reset(l)
    \/ \E message \in wire : Arrive(message)
    \/ \E b \in staged : Publish(b)
    \/ \E c \in Chains : Cut(c) \/ Delete(c)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must always hold. *)

Has(b, l, reset) == content[b][l] # Nothing /\ content[b][l].reset = reset

(* W1: a record that was read after a given reset is stored at most once. *)
ExactlyOnce ==
    \A p, q \in visible : p # q => \A l \in Leases :
        content[p][l] # Nothing /\ content[q][l] # Nothing => content[p][l].reset # content[q][l].reset

(* W1: a batch that was not decided is never seen. *)
VoidStaysVoid == visible \subseteq decided

(* W6: what the checkpoint passed is stored. *)
NothingLost == \A l \in Leases : row[l].done => \E b \in visible : Has(b, l, row[l].reset)

(* W2 and W5: what was decided is published or can be, by any worker. *)
DecidedIsKept == \A b \in decided : b \in visible \union staged \/ Gone(ChainOf(b))

NeverBack == [][\A l \in Leases : row'[l].reset = row[l].reset => (row[l].done => row'[l].done)]_vars
=============================================================================
