------------------------------ MODULE Replays ------------------------------
(***************************************************************************)
(* Replays of one window, whose parts are stored once each, although no    *)
(* lease says which are. All processes that replay the window make entries *)
(* of one chain, which is never closed and keeps all of them.              *)
(*                                                                         *)
(* A process reads the chain, publishes what is in it, and stages a part   *)
(* that is not. Then it makes the next entry. Any of them may end, or be   *)
(* paused, at any point; creates may arrive late, twice or never, and so   *)
(* may their answers. A process that was paused is not told from one that  *)
(* ended, and what it has staged is removed at some time.                  *)
(*                                                                         *)
(* The code: kcl_dagster/worker/parts_chain.py.                            *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
    Processes,
    Parts,
    MostBatches,     \* bound: batches that one process stages, with those that replace it when it ends
    MostRemovals,    \* bound: of what other processes have staged
    MostOnTheWire,
    \* What keeps it right. Each can be switched off, to see that it is needed.
    ChainIsRead,           \* parts that are in the chain are not staged again
    NumberComesFirst,      \* before staged files are removed, an entry takes the number that they may be decided with
    DecisionComesFirst,    \* files are published after their entry was made
    PublicationComesFirst, \* a process has ended well when what the chain has is published
    FailureIsNotGuessed,   \* after a lost answer, an entry of one's own is recognised
    SuccessIsNotGuessed    \* after a lost answer, an entry of another process is recognised

Batches == Processes \X (1..MostBatches)
Empty == <<0, 0>>    \* an entry that stores nothing
Alike == Permutations(Processes) \union Permutations(Parts)

VARIABLES
    log,               \* all entries: batches, and Empty
    process,
    wire,
    staged, visible,   \* sets of batches
    content,           \* of each batch: its part
    removals,
    ended              \* whether a process has ended well
vars == <<log, process, wire, staged, visible, content, removals, ended>>

New == [step |-> "new", seen |-> 0, known |-> {}, removes |-> {}]

Init ==
    /\ log = <<>>
    /\ process = [p \in Processes |-> [batch |-> 0] @@ New]
    /\ wire = {} /\ staged = {} /\ visible = {}
    /\ content = [b \in Batches |-> Empty]
    /\ removals = 0
    /\ ended = FALSE

Decided == {log[n] : n \in 1..Len(log)} \ {Empty}
Batch(p) == <<p, process[p].batch>>
Restarted(p) == [process EXCEPT ![p] = [batch |-> process[p].batch] @@ New]

----------------------------------------------------------------------------

Read(p) ==
    /\ process[p].step = "new"
    /\ process' = [process EXCEPT ![p].step = "read", ![p].seen = Len(log),
                                  ![p].known = IF ChainIsRead THEN {content[b] : b \in Decided} ELSE {}]
    /\ UNCHANGED <<log, wire, staged, visible, content, removals, ended>>

(* It publishes what it has read. What others decide meanwhile is behind that. *)
IsPublished(p) == {log[n] : n \in 1..process[p].seen} \intersect staged = {}

(* What other processes have staged so long ago that they seem to have ended. *)
FindLeft(p) ==
    LET left == {b \in staged : b \notin Decided /\ b[1] # p} IN
    /\ process[p].step = "read" /\ IsPublished(p)
    /\ removals < MostRemovals /\ left # {}
    /\ removals' = removals + 1
    /\ IF ~NumberComesFirst
       THEN /\ process' = [process EXCEPT ![p].step = "removes", ![p].removes = left]
            /\ UNCHANGED log
       ELSE IF process[p].seen = Len(log)
       THEN /\ process' = [process EXCEPT ![p].step = "removes", ![p].removes = left, ![p].seen = @ + 1]
            /\ log' = Append(log, Empty)
       ELSE /\ process' = Restarted(p)   \* another process has made this entry
            /\ UNCHANGED log
    /\ UNCHANGED <<wire, staged, visible, content, ended>>

Remove(p) ==
    /\ process[p].step = "removes"
    /\ staged' = staged \ process[p].removes
    /\ process' = [process EXCEPT ![p].step = "read", ![p].removes = {}]
    /\ UNCHANGED <<log, wire, visible, content, removals, ended>>

Stage(p, part) ==
    LET b == <<p, process[p].batch + 1>> IN
    /\ process[p].step = "read" /\ IsPublished(p)
    /\ process[p].batch < MostBatches /\ part \notin process[p].known
    /\ staged' = staged \union {b}
    /\ content' = [content EXCEPT ![b] = part]
    /\ process' = [process EXCEPT ![p].step = "staged", ![p].batch = @ + 1]
    /\ UNCHANGED <<log, wire, visible, removals, ended>>

Send(p) ==
    /\ process[p].step = "staged"
    /\ \/ /\ Cardinality(wire) < MostOnTheWire
          /\ wire' = wire \union {[batch |-> Batch(p), number |-> process[p].seen + 1]}
       \/ UNCHANGED wire   \* it never arrives
    /\ process' = [process EXCEPT ![p].step = "sent"]
    /\ UNCHANGED <<log, staged, visible, content, removals, ended>>

Stored(p) ==
    [process EXCEPT ![p].step = "read", ![p].seen = @ + 1, ![p].known = @ \union {content[Batch(p)]}]

(* A create arrives. Its answer arrives as well, or does not. *)
Arrive(message) ==
    LET b == message.batch
        p == b[1]
        awaited == process[p].step = "sent" /\ Batch(p) = b IN
    /\ wire' = wire \ {message}
    /\ IF message.number > Len(log)
       THEN /\ log' = Append(log, b)
            /\ process' \in {process} \union (IF awaited THEN {Stored(p)} ELSE {})
       ELSE UNCHANGED <<log, process>>
    /\ UNCHANGED <<staged, visible, content, removals, ended>>

(* No answer: the process sends the create again, and reads the entry if there is one. If it is that of another
   process, its own files are removed and it ends. *)
Repeat(p) ==
    LET number == process[p].seen + 1 IN
    /\ process[p].step = "sent"
    /\ IF number > Len(log)
       THEN log' = Append(log, Batch(p)) /\ process' = Stored(p) /\ UNCHANGED staged
       ELSE /\ UNCHANGED log
            /\ IF IF log[number] = Batch(p) THEN FailureIsNotGuessed ELSE ~SuccessIsNotGuessed
               THEN process' = Stored(p) /\ UNCHANGED staged
               ELSE process' = Restarted(p) /\ staged' = staged \ {Batch(p)}
    /\ UNCHANGED <<wire, visible, content, removals, ended>>

(* By any process, in several steps of which each may be repeated. *)
Publish(b) ==
    /\ b \in staged
    /\ DecisionComesFirst => b \in Decided
    /\ visible' = visible \union {b} /\ staged' = staged \ {b}
    /\ UNCHANGED <<log, process, wire, content, removals, ended>>

End(p) ==
    /\ process[p].step = "read" /\ process[p].known = Parts
    /\ PublicationComesFirst => IsPublished(p)
    /\ ended' = TRUE
    /\ process' = Restarted(p)
    /\ UNCHANGED <<log, wire, staged, visible, content, removals>>

(* It is killed, and another one is started. *)
Die(p) ==
    /\ process[p].step # "new"
    /\ process' = Restarted(p)
    /\ UNCHANGED <<log, wire, staged, visible, content, removals, ended>>

Next ==
    \/ \E p \in Processes :
        \/ Read(p) \/ FindLeft(p) \/ Remove(p) \/ Send(p) \/ Repeat(p) \/ End(p) \/ Die(p)
        \/ \E part \in Parts : Stage(p, part)
    \/ \E message \in wire : Arrive(message)
    \/ \E b \in staged : Publish(b)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must always hold. *)

(* Readers see each part once. *)
Once == \A p, q \in visible : p # q => content[p] # content[q]

(* What was not decided is never seen. *)
VoidStaysVoid == visible \subseteq Decided

(* What was decided is published or can be, by any process. *)
DecidedIsKept == Decided \subseteq (visible \union staged)

(* When a process has ended well, readers see all of the window. *)
Complete == ended => Parts = {content[b] : b \in visible}
=============================================================================
