------------------------------ MODULE Takeover ------------------------------
(***************************************************************************)
(* When a lease may be taken without its owner's consent (S8, S9).         *)
(*                                                                         *)
(* Observers watch a counter. Each read takes time and sees the counter as *)
(* it was at some moment in between. What an observer knows is lost when   *)
(* it dies; what it wrote down is read by others, perhaps an older copy of *)
(* it, perhaps never. Clocks agree on durations and on nothing else, so    *)
(* only durations are written down.                                        *)
(*                                                                         *)
(* The code: kcl_dagster/model/standing.py, leader/expiry.py,              *)
(* leader/moving.py.                                                       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Observers,
    Duration,        \* of a lease
    MostTime, MostChanges,
    \* What keeps it right. Each can be switched off, to see that it is needed.
    ReadsAreBounded, \* a version stands from the END of the first read to the START of the last
    VersionsMatter,  \* what was known of another version is forgotten
    TakesAreFenced   \* the take is conditional on the version that stood

VARIABLES now, counter, changed, sees, papers, early
vars == <<now, counter, changed, sees, papers, early>>

Nothing == [version |-> 0, seconds |-> 0, since |-> 0, last |-> 0, seen |-> FALSE]
Idle == [reading |-> FALSE, started |-> 0, value |-> 0, got |-> FALSE]
Max(a, b) == IF a > b THEN a ELSE b
Alike == Permutations(Observers)

Init ==
    /\ now = 0 /\ counter = 1 /\ changed = 0
    /\ sees = [o \in Observers |-> [memory |-> Nothing, read |-> Idle]]
    /\ papers = {}          \* every statement that was ever written down: any of them may be read later
    /\ early = FALSE

Tick == /\ now < MostTime /\ now' = now + 1 /\ UNCHANGED <<counter, changed, sees, papers, early>>

(* The owner renews. *)
Renew ==
    /\ counter < MostChanges
    /\ counter' = counter + 1 /\ changed' = now
    /\ UNCHANGED <<now, sees, papers, early>>

Start(o) ==
    /\ ~sees[o].read.reading
    /\ sees' = [sees EXCEPT ![o].read = [reading |-> TRUE, started |-> now, value |-> 0, got |-> FALSE]]
    /\ UNCHANGED <<now, counter, changed, papers, early>>

Sample(o) ==
    /\ sees[o].read.reading /\ ~sees[o].read.got
    /\ sees' = [sees EXCEPT ![o].read.value = counter, ![o].read.got = TRUE]
    /\ UNCHANGED <<now, counter, changed, papers, early>>

(* Standing.observe *)
Finish(o) ==
    LET read == sees[o].read
        known == sees[o].memory
        first == IF ReadsAreBounded THEN now ELSE read.started
        latest == IF ReadsAreBounded THEN read.started ELSE now
        fresh == [version |-> read.value, seconds |-> 0, since |-> first, last |-> latest, seen |-> TRUE]
        same == known.version = read.value \/ (~VersionsMatter /\ known.version # 0) IN
    /\ read.got
    /\ sees' = [sees EXCEPT ![o] =
            [read |-> Idle,
             memory |-> IF same
                        THEN [known EXCEPT !.version = read.value, !.last = Max(@, latest), !.seen = TRUE]
                        ELSE fresh]]
    /\ UNCHANGED <<now, counter, changed, papers, early>>

Stood(m) == IF m.seen /\ m.last > m.since THEN m.seconds + m.last - m.since ELSE IF m.seen THEN m.seconds ELSE 0

(* Standing.to_document: seconds travel, moments do not. *)
WriteDown(o) ==
    /\ sees[o].memory.seen /\ Stood(sees[o].memory) > 0
    /\ Cardinality(papers) < 2
    /\ papers' = papers \union {[version |-> sees[o].memory.version, seconds |-> Stood(sees[o].memory)]}
    /\ UNCHANGED <<now, counter, changed, sees, early>>

(* Standing.absorb *)
ReadUp(o) ==
    \E paper \in papers :
        LET known == sees[o].memory
            told == [version |-> paper.version, seconds |-> paper.seconds, since |-> now, last |-> 0, seen |-> FALSE]
            better == paper.seconds + known.since > known.seconds + now IN
        /\ known.version = 0 \/ (known.version = paper.version /\ better)
        /\ sees' = [sees EXCEPT ![o].memory =
                IF known.version = 0 THEN told
                ELSE [known EXCEPT !.seconds = paper.seconds, !.since = now]]
        /\ UNCHANGED <<now, counter, changed, papers, early>>

Die(o) ==
    /\ sees[o].memory # Nothing
    /\ sees' = [sees EXCEPT ![o] = [memory |-> Nothing, read |-> Idle]]
    /\ UNCHANGED <<now, counter, changed, papers, early>>

(* Expired: the counter stood for longer than the lease. The take arrives whenever it arrives. *)
Take(o) ==
    LET known == sees[o].memory IN
    /\ known.seen /\ Stood(known) > Duration
    /\ TakesAreFenced => counter = known.version
    /\ counter < MostChanges + 1
    /\ counter' = counter + 1 /\ changed' = now
    /\ early' = (early \/ now - changed <= Duration)
    /\ UNCHANGED <<now, sees, papers>>

Next ==
    \/ Tick \/ Renew
    \/ \E o \in Observers :
        Start(o) \/ Sample(o) \/ Finish(o) \/ WriteDown(o) \/ ReadUp(o) \/ Die(o) \/ Take(o)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
NeverEarly == ~early

(* What an observer believes is never more than the truth. *)
LowerBounds ==
    \A o \in Observers :
        LET known == sees[o].memory IN
        known.seen /\ known.version = counter => Stood(known) <= now - changed
=============================================================================
