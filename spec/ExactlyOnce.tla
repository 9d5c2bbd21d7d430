---------------------------- MODULE ExactlyOnce ----------------------------
(***************************************************************************)
(* One shard, its lease, the workers that come to own it, and a sink that  *)
(* stores each part once.                                                  *)
(*                                                                         *)
(* DynamoDB is the item `lease` and the conditional writes in `wire`: sent *)
(* and not arrived. A write may arrive at once, late, after its sender has *)
(* given up or died, or never; its answer may be lost. The leader may take *)
(* or hand over the lease whenever it likes: nothing here depends on how   *)
(* long a counter stood still (that is Takeover.tla).                      *)
(*                                                                         *)
(* The code: kcl_dagster/worker/protocol.py, worker/lease_writes.py,       *)
(* tables/requests.py, tables/leases.py.                                   *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Workers,
    None,            \* nobody
    Records,         \* the shard holds the records 1..Records
    MostWrites,      \* bound: the lease counter stops here
    MostOnTheWire,   \* bound: writes on the wire at once
    \* What keeps it right. Each can be switched off, to see that it is needed.
    PinIsFenced,     \* prepare is conditional on the counter
    CommitIsFenced,  \* commit is conditional on the counter
    PinComesFirst,   \* the pin is written before the sink is
    PinIsObeyed,     \* a pinned range is redone exactly
    DoubtIsRead      \* after a lost answer the lease is read again, not guessed

Alike == Permutations(Workers)   \* it makes no difference which worker is which

VARIABLES lease, worker, wire, sink
vars == <<lease, worker, wire, sink>>

NoLease == [counter |-> 0, owner |-> None, giver |-> None, done |-> 0, pin |-> 0, number |-> 0]
Nobody == [step |-> "away", knows |-> NoLease, through |-> 0, sent |-> NoLease]

Actual(l) == IF l.giver # None THEN l.giver ELSE l.owner

Init ==
    /\ lease = NoLease
    /\ worker = [w \in Workers |-> Nobody]
    /\ wire = {}
    /\ sink = {}

----------------------------------------------------------------------------
(* Writes. `expect` is the counter they are conditional on. *)

Pin(l, through) ==
    [l EXCEPT !.counter = @ + 1, !.pin = through, !.number = @ + 1]
Commit(l, through) ==
    [l EXCEPT !.counter = @ + 1, !.pin = 0, !.done = through]

Send(w, kind, through, step) ==
    LET write == [from |-> w, kind |-> kind, through |-> through, expect |-> worker[w].knows.counter] IN
    /\ Cardinality(wire) < MostOnTheWire
    /\ wire' = wire \union {write}
    /\ worker' = [worker EXCEPT ![w].step = step, ![w].through = through]

Accepts(write) ==
    \/ lease.counter = write.expect
    \/ write.kind = "pin" /\ ~PinIsFenced /\ lease.counter > 0
    \/ write.kind = "commit" /\ ~CommitIsFenced /\ lease.counter > 0

Awaited(write) ==
    LET me == worker[write.from] IN
    /\ me.knows.counter = write.expect
    /\ me.through = write.through
    /\ me.step = IF write.kind = "pin" THEN "pinning" ELSE "committing"

After(write, l) == IF write.kind = "pin" THEN Pin(l, write.through) ELSE Commit(l, write.through)

(* The write arrives; its sender hears of it, or does not. *)
Arrive(write) ==
    /\ wire' = wire \ {write}
    /\ UNCHANGED sink
    /\ IF Accepts(write) /\ lease.counter < MostWrites
       THEN /\ lease' = After(write, lease)
            /\ \/ /\ Awaited(write)
                  /\ worker' = [worker EXCEPT
                        ![write.from].knows = After(write, lease),
                        ![write.from].step = IF write.kind = "pin" THEN "pinned" ELSE "idle"]
               \/ UNCHANGED worker
       ELSE /\ UNCHANGED lease
            /\ \/ /\ Awaited(write)
                  /\ worker' = [worker EXCEPT ![write.from] = Nobody]   \* LeaseLost
               \/ UNCHANGED worker

GiveUp(w) ==
    /\ worker[w].step \in {"pinning", "committing"}
    /\ worker' = [worker EXCEPT ![w].step = "doubt",
                                ![w].sent = IF worker[w].step = "pinning"
                                            THEN Pin(worker[w].knows, worker[w].through)
                                            ELSE Commit(worker[w].knows, worker[w].through)]
    /\ UNCHANGED <<lease, wire, sink>>

(* Holdings._settle: the table is asked. One write of ours, at most, may lie between what we knew and now. *)
Settle(w) ==
    LET knows == worker[w].knows IN
    /\ worker[w].step = "doubt"
    /\ worker' = [worker EXCEPT ![w] =
            IF Actual(lease) = w /\ lease.counter \in {knows.counter, knows.counter + 1}
            THEN [Nobody EXCEPT
                    !.step = "idle",
                    !.knows = IF DoubtIsRead \/ lease.counter = knows.counter THEN lease ELSE worker[w].sent]
            ELSE Nobody]
    /\ UNCHANGED <<lease, wire, sink>>

----------------------------------------------------------------------------
(* One worker. It may stop for ever, or for a long time, after every step. *)

Discover(w) ==
    /\ worker[w].step = "away"
    /\ lease.owner = w /\ lease.giver = None
    /\ worker' = [worker EXCEPT ![w] = [Nobody EXCEPT !.step = "idle", !.knows = lease]]
    /\ UNCHANGED <<lease, wire, sink>>

Fetch(w) ==
    LET knows == worker[w].knows
        resumes == knows.pin # 0 /\ PinIsObeyed IN
    /\ worker[w].step = "idle"
    /\ knows.done < Records
    /\ UNCHANGED <<lease, sink>>
    /\ \/ /\ resumes
          /\ worker' = [worker EXCEPT ![w].step = "pinned", ![w].through = knows.pin]
          /\ UNCHANGED wire
       \/ /\ ~resumes
          /\ \E through \in (knows.done + 1)..Records :
                \/ PinComesFirst /\ Send(w, "pin", through, "pinning")
                \/ /\ ~PinComesFirst
                   /\ worker' = [worker EXCEPT ![w].step = "pinned", ![w].through = through]
                   /\ UNCHANGED wire

Store(w) ==
    LET me == worker[w] IN
    /\ me.step = "pinned"
    /\ sink' = sink \union {[after |-> me.knows.done, through |-> me.through, number |-> me.knows.number]}
    /\ worker' = [worker EXCEPT ![w].step = "stored"]
    /\ UNCHANGED <<lease, wire>>

StartCommit(w) ==
    /\ worker[w].step = "stored"
    /\ Send(w, "commit", worker[w].through, "committing")
    /\ UNCHANGED <<lease, sink>>

Die(w) ==
    /\ worker[w].step # "away"
    /\ worker' = [worker EXCEPT ![w] = Nobody]
    /\ UNCHANGED <<lease, wire, sink>>

Transfer(w) ==
    /\ worker[w].step = "idle"
    /\ lease.giver = w
    /\ lease.counter < MostWrites
    /\ lease' = [lease EXCEPT !.giver = None, !.counter = @ + 1]
    /\ worker' = [worker EXCEPT ![w] = Nobody]
    /\ UNCHANGED <<wire, sink>>

----------------------------------------------------------------------------
(* The leader, or several of them. *)

Assign(w) ==
    /\ lease.counter < MostWrites
    /\ lease.owner # w \/ lease.giver # None
    /\ lease' = [lease EXCEPT !.owner = w, !.giver = None, !.counter = @ + 1]
    /\ UNCHANGED <<worker, wire, sink>>

Handoff(w) ==
    /\ lease.owner \notin {None, w} /\ lease.giver = None
    /\ lease' = [lease EXCEPT !.owner = w, !.giver = lease.owner]
    /\ UNCHANGED <<worker, wire, sink>>

Next ==
    \/ \E w \in Workers :
        \/ Discover(w) \/ Fetch(w) \/ Store(w) \/ StartCommit(w) \/ GiveUp(w) \/ Settle(w) \/ Die(w)
        \/ Transfer(w) \/ Assign(w) \/ Handoff(w)
    \/ \E write \in wire : Arrive(write) \/ (wire' = wire \ {write} /\ UNCHANGED <<lease, worker, sink>>)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must always hold. *)

Covers(part) == (part.after + 1)..part.through

(* S12: a record is in one part at most, and a part is always the same part. *)
ExactlyOnce == \A p, q \in sink : p # q => Covers(p) \intersect Covers(q) = {}

(* S1: what the checkpoint passed is in the sink. *)
NothingLost == (1..lease.done) \subseteq UNION {Covers(p) : p \in sink}

(* S2: a part begins where another one ended. *)
InOrder == \A p \in sink : p.after = 0 \/ \E q \in sink : q.through = p.after

(* S4 and S5. *)
NeverBack == [][lease'.done >= lease.done /\ lease'.counter >= lease.counter]_vars

(* S3, as far as owners are concerned: while somebody else owns the lease, a worker's writes change nothing. *)
OnlyTheOwnerWrites ==
    [][lease'.done # lease.done \/ lease'.pin # lease.pin =>
        \E write \in wire : write \notin wire' /\ Actual(lease) = write.from]_vars
=============================================================================
