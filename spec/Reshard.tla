------------------------------ MODULE Reshard ------------------------------
(***************************************************************************)
(* Shards that split and merge, and the leases that follow them: parents   *)
(* first, every hash key covered, nothing read twice.                      *)
(*                                                                         *)
(* Leaders decide which leases the first shards need, and create them one  *)
(* by one; workers finish shards, and before that create leases for the    *)
(* children one by one. Any of them may rest for as long as it likes       *)
(* between two steps, while others go on; leases that are done with are    *)
(* deleted meanwhile.                                                      *)
(*                                                                         *)
(* The code: kcl_dagster/leader/sync.py, leader/sync_stage.py,                *)
(* leader/cleanup.py, leader/clean_stage.py, worker/shard_end.py,             *)
(* worker/parents.py.                                                      *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Workers, Leaders,
    \* What keeps it right. Each can be switched off, to see that it is needed.
    ParentsBlock,      \* a shard is not read while a parent's lease is unfinished
    SiblingsAreKnown,  \* a merged shard gets its lease when the other parent has one
    ChildrenComeFirst, \* children have leases before their parent is finished
    ChildrenAreFenced, \* a child's lease is created in one transaction with its parent's, if that is unfinished
    RootsAreFenced     \* the first leases are created in one transaction with the lock, by whoever leads

(* Shard 0 is split into 1 and 2, which are merged into 3. *)
Shards == 0..3
Parents == [s \in Shards |-> CASE s = 0 -> {} [] s \in {1, 2} -> {0} [] OTHER -> {1, 2}]
Children == [s \in Shards |-> {c \in Shards : s \in Parents[c]}]
Keys == {"low", "high"}
Serves == [s \in Shards |-> CASE s = 1 -> {"low"} [] s = 2 -> {"high"} [] OTHER -> Keys]

VARIABLES
    listed,   \* shards that exist
    closed,
    lease,    \* "none", "new", "begun" or "finished"
    epoch,    \* how often the lease changed hands
    times,    \* how often the shard was read from its beginning
    read,     \* shards whose records are all stored, or lie before the start
    worker,   \* what each worker is doing
    wants,    \* leases that each leader has decided to create
    leads,    \* who leads
    covered   \* whether every hash key has had a lease

vars == <<listed, closed, lease, epoch, times, read, worker, wants, leads, covered>>
stream == <<listed, closed>>
led == <<wants, leads>>

Idle == [step |-> "idle", shard |-> 0, epoch |-> 0, left |-> {}]
Covers(l) == \A k \in Keys : \E s \in Shards : l[s] \in {"new", "begun"} /\ k \in Serves[s]
Note == covered' = (covered \/ Covers(lease'))

(* The application begins with shard 0, or at LATEST with 1 and 2. *)
Init ==
    /\ \/ listed = {0} /\ closed = {} /\ read = {}
       \/ listed = {0, 1, 2} /\ closed = {0} /\ read = {0}
    /\ lease = [s \in Shards |-> "none"]
    /\ epoch = [s \in Shards |-> 0]
    /\ times = [s \in Shards |-> 0]
    /\ worker = [w \in Workers |-> Idle]
    /\ wants = [l \in Leaders |-> listed \ closed]   \* all looked at the empty table
    /\ leads \in Leaders
    /\ covered = FALSE

Split == /\ closed = {} /\ listed' = {0, 1, 2} /\ closed' = {0}
         /\ UNCHANGED <<lease, epoch, times, read, worker, led, covered>>
Merge == /\ closed = {0} /\ listed' = Shards /\ closed' = {0, 1, 2}
         /\ UNCHANGED <<lease, epoch, times, read, worker, led, covered>>

----------------------------------------------------------------------------
(* The lock changes hands; the next leader looks again, at a table that has leases by then or has none. *)
Succeed(l) ==
    /\ leads # l
    /\ leads' = l
    /\ wants' = [wants EXCEPT ![l] = IF \A s \in Shards : lease[s] = "none" THEN @ ELSE {}]
    /\ UNCHANGED <<stream, lease, epoch, times, read, worker, covered>>

CreateRoot(l, s) ==
    /\ s \in wants[l]
    /\ RootsAreFenced => leads = l
    /\ lease' = [lease EXCEPT ![s] = IF @ = "none" THEN "new" ELSE @]
    /\ wants' = [wants EXCEPT ![l] = @ \ {s}]
    /\ Note
    /\ UNCHANGED <<stream, epoch, times, read, worker, leads>>

(* A leader that finds its work half done completes it: the audit of the hash keys. *)
Repair(l) ==
    /\ leads = l /\ ~covered /\ wants[l] = {} /\ \E s \in Shards : lease[s] # "none"
    /\ wants' = [wants EXCEPT ![l] = {s \in {1, 2} : 0 \in read /\ times[0] = 0 /\ lease[s] = "none"}]
    /\ wants'[l] # {}
    /\ UNCHANGED <<stream, lease, epoch, times, read, worker, leads, covered>>

(* plan_cleanup *)
Clean(s) ==
    /\ lease[s] = "finished"
    /\ \A p \in Parents[s] : lease[p] = "none"
    /\ Children[s] \intersect listed # {}
    /\ \A c \in Children[s] \intersect listed : lease[c] \in {"begun", "finished"}
    /\ lease' = [lease EXCEPT ![s] = "none"]
    /\ UNCHANGED <<stream, epoch, times, read, worker, led, covered>>

----------------------------------------------------------------------------
(* A worker gets a lease; whoever had it before does not know yet. *)
Take(w, s) ==
    /\ worker[w].step = "idle"
    /\ lease[s] \in {"new", "begun"}
    /\ epoch[s] < 2
    /\ epoch' = [epoch EXCEPT ![s] = @ + 1]
    /\ worker' = [worker EXCEPT ![w] = [Idle EXCEPT !.step = "held", !.shard = s, !.epoch = epoch[s] + 1]]
    /\ UNCHANGED <<stream, lease, times, read, led, covered>>

Stands(w) == worker[w].epoch = epoch[worker[w].shard]

(* Parents.is_blocked *)
Unblock(w) ==
    /\ worker[w].step = "held"
    /\ ParentsBlock => \A p \in Parents[worker[w].shard] : lease[p] \in {"none", "finished"}
    /\ worker' = [worker EXCEPT ![w].step = "free"]
    /\ UNCHANGED <<stream, lease, epoch, times, read, led, covered>>

(* The records of the shard are stored, in however many batches; fenced, so only while the lease stands. *)
Read(w) ==
    LET s == worker[w].shard IN
    /\ worker[w].step = "free" /\ Stands(w) /\ lease[s] \in {"new", "begun"}
    /\ times' = [times EXCEPT ![s] = IF lease[s] = "new" THEN @ + 1 ELSE @]
    /\ read' = IF s \in closed THEN read \union {s} ELSE read
    /\ lease' = [lease EXCEPT ![s] = "begun"]
    /\ worker' = [worker EXCEPT ![w] =
            IF s \in closed
            THEN [@ EXCEPT !.step = IF ChildrenComeFirst THEN "ending" ELSE "closing", !.left = Children[s]]
            ELSE @]
    /\ UNCHANGED <<stream, epoch, led, covered>>

(* ShardEnds.create_children, one child. Whoever lost the parent's lease does not know it. *)
CreateChild(w, c) ==
    LET s == worker[w].shard IN
    /\ worker[w].step = "ending" /\ c \in worker[w].left
    /\ SiblingsAreKnown => \A p \in Parents[c] : p = s \/ lease[p] # "none" \/ p \in read
    /\ ChildrenAreFenced => lease[s] \in {"new", "begun"}
    /\ lease' = [lease EXCEPT ![c] = IF @ = "none" THEN "new" ELSE @]
    /\ worker' = [worker EXCEPT ![w].left = @ \ {c}]
    /\ Note
    /\ UNCHANGED <<stream, epoch, times, read, led>>

Finish(w) ==
    LET me == worker[w] IN
    /\ me.step = "closing" \/ (me.step = "ending" /\ me.left = {})
    /\ Stands(w) /\ lease[me.shard] = "begun"
    /\ lease' = [lease EXCEPT ![me.shard] = "finished"]
    /\ worker' = [worker EXCEPT ![w] = IF me.step = "closing" THEN [@ EXCEPT !.step = "ending"] ELSE Idle]
    /\ UNCHANGED <<stream, epoch, times, read, led, covered>>

Drop(w) ==
    /\ worker[w].step # "idle"
    /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ UNCHANGED <<stream, lease, epoch, times, read, led, covered>>

Next ==
    \/ Split \/ Merge
    \/ \E s \in Shards : Clean(s)
    \/ \E l \in Leaders : Succeed(l) \/ Repair(l) \/ \E s \in Shards : CreateRoot(l, s)
    \/ \E w \in Workers :
        \/ Unblock(w) \/ Read(w) \/ Finish(w) \/ Drop(w)
        \/ \E s \in Shards : Take(w, s) \/ CreateChild(w, s)

Spec == Init /\ [][Next]_vars
Alike == Permutations(Workers) \union Permutations(Leaders)

----------------------------------------------------------------------------
(* S6 *)
ParentsFirst == \A s \in Shards : times[s] > 0 => Parents[s] \subseteq read

(* S1 *)
FinishedIsRead == \A s \in Shards : lease[s] = "finished" => s \in read

(* S12: nothing is read from its beginning twice, for want of a lease that says how far it was read. *)
NothingTwice == \A s \in Shards : times[s] <= 1

(* S7 *)
Covered == covered => Covers(lease)
=============================================================================
