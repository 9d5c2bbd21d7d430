---------------------------- MODULE TableCommits ----------------------------
(***************************************************************************)
(* Workers that commit to tables what was decided in chains of entries.    *)
(*                                                                         *)
(* A commit is planned in a record with a number, made with a conditional  *)
(* create: the first one of a number remains until it is deleted. A create *)
(* may arrive late, after its sender has given up (`wire`). Each table     *)
(* keeps the number of the last commit in the same transaction as the      *)
(* files, and refuses a transaction if another one has changed the number  *)
(* since it was read.                                                      *)
(*                                                                         *)
(* A plan is for all tables of a sink. It is carried out in a transaction  *)
(* for each table that gets files of it, one after the other, and a worker *)
(* may die between two of them.                                            *)
(*                                                                         *)
(* A plan without entries changes no table. A worker that stops makes one, *)
(* so that an operator may then drop a table, which is made anew (`Drop`). *)
(* The first table may be made anew together with its chains and plans     *)
(* (`Remake`). New plans then begin above the numbers of the other tables. *)
(*                                                                         *)
(* How chains are made and closed is shown by Chain.tla.                   *)
(*                                                                         *)
(* The code: kcl_dagster/chains/table_commits.py,                          *)
(* worker/table_committer.py.                                              *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Workers,
    Chains,
    None,
    MostEntries,     \* bound: of a chain
    MostCommits,     \* bound: numbers of plans
    MostOnTheWire,
    LastTable,       \* the tables are 1..LastTable
    MostAnew,        \* bound: how often an operator makes a table anew
    \* What keeps it right. Each can be switched off, to see that it is needed.
    CommitComesFirst,    \* a plan follows the commit of the one before
    NewestIsVerified,    \* a plan counts only if no plan with a higher number exists
    NumberIsLookedUp,    \* a plan whose number the table contains is not carried out
    ConflictIsSeen,      \* of two transactions that read the same number, one is refused
    LastPlanIsKept,      \* of the plans, only those before the newest one are deleted
    LastEntryIsKept,     \* the owner of a chain does not delete its last entry
    EntriesGoFirst,      \* plans forget a chain when it has no entries any more
    EveryTableCounts,    \* a plan counts as carried out only when every table of it contains it
    DropFollowsRest,     \* a table is dropped only when the last plan has no entries
    PlansBeginAbove      \* the first plan has a higher number than any table contains

Alike == Permutations(Workers) \union Permutations(Chains)

VARIABLES
    made, cut,   \* of each chain: entries 1..made were made, 1..cut are deleted again
    gone,        \* chains that were closed and deleted: all of their entries are deleted
    plans,       \* of each number: a plan, or None
    number,      \* in each table
    count,       \* of each entry: how often each table contains it
    known,       \* of each chain: its owner knows that the tables contain 1..known
    worker, wire,
    anew         \* how often a table was made anew
vars == <<made, cut, gone, plans, number, count, known, worker, wire, anew>>

Numbers == 1..MostCommits
Tables == 1..LastTable
(* Of two entries of a chain, the second one has files for the last table only. *)
TablesOf(entry) == IF entry[2] % 2 = 0 THEN {LastTable} ELSE Tables
TablesOfPlan(plan) == UNION {TablesOf(e) : e \in plan.entries}
Nothing == [c \in Chains |-> 0]
NoPlan == [entries |-> {}, contained |-> Nothing]
Idle == [step |-> "idle", number |-> 0, plan |-> NoPlan, table |-> 0, seen |-> 0]

Init ==
    /\ made = Nothing /\ cut = Nothing /\ gone = {} /\ known = Nothing
    /\ plans = [n \in Numbers |-> None]
    /\ number = [t \in Tables |-> 0]
    /\ count = [t \in Tables |-> [c \in Chains |-> [i \in 1..MostEntries |-> 0]]]
    /\ worker = [w \in Workers |-> Idle]
    /\ wire = {} /\ anew = 0

Max(some) == CHOOSE n \in some : \A m \in some : m <= n
Existing == {n \in Numbers : plans[n] # None}
Newest == IF Existing = {} THEN 0 ELSE Max(Existing)
PlanOf(n) == IF n = 0 THEN NoPlan ELSE plans[n]
Highest == Max({number[t] : t \in Tables})
(* There is a plan, or no table contains a commit. Before that, no worker decides a batch. *)
HasBegun == Existing # {} \/ Highest = 0 \/ ~PlansBeginAbove
Learn(contained) == [c \in Chains |-> Max({known[c], contained[c]})]

----------------------------------------------------------------------------
(* The owners of chains. *)

Decide(c) ==
    /\ c \notin gone /\ made[c] < MostEntries /\ HasBegun
    /\ made' = [made EXCEPT ![c] = @ + 1]
    /\ UNCHANGED <<cut, gone, plans, number, count, known, worker, wire, anew>>

Cut(c) ==
    /\ c \notin gone /\ cut[c] < known[c]
    /\ LastEntryIsKept => cut[c] + 1 < made[c]
    /\ cut' = [cut EXCEPT ![c] = @ + 1]
    /\ UNCHANGED <<made, gone, plans, number, count, known, worker, wire, anew>>

(* A chain that was closed, and all of whose entries are committed. *)
Forget(c) ==
    /\ c \notin gone /\ made[c] > 0 /\ known[c] = made[c]
    /\ gone' = gone \union {c}
    /\ cut' = [cut EXCEPT ![c] = made[c]]
    /\ UNCHANGED <<made, plans, number, count, known, worker, wire, anew>>

----------------------------------------------------------------------------
(* A worker plans a commit. *)

Read(w) ==
    /\ worker[w].step = "idle" /\ HasBegun
    /\ worker' = [worker EXCEPT ![w] = [@ EXCEPT !.step = "read", !.number = Newest, !.plan = PlanOf(Newest)]]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, known, wire, anew>>

(* The first table that gets files of a plan, after `former`; 0: there is none. *)
TableAfter(former, plan) ==
    LET left == {t \in TablesOfPlan(plan) : t > former}
    IN IF left = {} THEN 0 ELSE CHOOSE t \in left : \A other \in left : t <= other
Planned(w) == [worker[w] EXCEPT !.step = "planned", !.table = TableAfter(0, worker[w].plan)]

IsCarriedOut(n, plan) ==
    IF EveryTableCounts \/ plan.entries = {} THEN \A t \in TablesOfPlan(plan) : number[t] >= n
    ELSE \E t \in TablesOfPlan(plan) : number[t] >= n

(* The plan that was read is in the tables, or is carried out first. *)
Check(w) ==
    /\ worker[w].step = "read"
    /\ IF IsCarriedOut(worker[w].number, worker[w].plan)
       THEN worker' = [worker EXCEPT ![w].step = "checked"] /\ known' = Learn(worker[w].plan.contained)
       ELSE /\ UNCHANGED known
            /\ \/ worker' = [worker EXCEPT ![w] = Planned(w)]
               \/ ~CommitComesFirst /\ worker' = [worker EXCEPT ![w].step = "checked"]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, wire, anew>>

HasEntries(c) == cut[c] < made[c]
(* A chain that the last plan does not know, and whose first entry is missing, is passed over. *)
IsTaken(c, contained) == HasEntries(c) /\ (contained[c] > 0 \/ cut[c] = 0)

List(w) ==
    LET before == worker[w].plan.contained IN
    /\ worker[w].step = "checked" /\ worker[w].number < MostCommits
    /\ \E forgotten \in SUBSET Chains :
        /\ EntriesGoFirst => \A c \in forgotten : ~HasEntries(c)
        /\ \A c \in Chains : ~HasEntries(c) => c \in forgotten
        /\ LET entries == {e \in Chains \X (1..MostEntries) :
                              /\ IsTaken(e[1], before) /\ e[1] \notin forgotten
                              /\ e[2] > before[e[1]] /\ e[2] > cut[e[1]] /\ e[2] <= made[e[1]]}
               after == [c \in Chains |-> IF c \in forgotten THEN 0
                                          ELSE IF IsTaken(c, before) THEN made[c] ELSE before[c]]
           IN /\ entries # {} \/ ~EntriesGoFirst
              /\ worker' = [worker EXCEPT ![w] = [@ EXCEPT !.step = "listed", !.number = @ + 1,
                                                           !.plan = [entries |-> entries, contained |-> after]]]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, known, wire, anew>>

(* A worker that stops: the next plan has no entries. It matters before a table is made anew. *)
Rest(w) ==
    /\ MostAnew > 0 /\ worker[w].step = "checked" /\ worker[w].number < MostCommits /\ worker[w].plan.entries # {}
    /\ \A c \in Chains : ~HasEntries(c)
    /\ worker' = [worker EXCEPT ![w] = [@ EXCEPT !.step = "listed", !.number = @ + 1, !.plan.entries = {}]]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, known, wire, anew>>

(* Without plans and entries, the first plan has no entries. *)
Begin(w) ==
    /\ worker[w].step = "idle" /\ ~HasBegun /\ Highest < MostCommits
    /\ worker' = [worker EXCEPT ![w] = [Idle EXCEPT !.step = "listed", !.number = Highest + 1]]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, known, wire, anew>>

Create(w) ==
    LET n == worker[w].number IN
    /\ worker[w].step = "listed"
    /\ IF plans[n] = None
       THEN /\ plans' = [plans EXCEPT ![n] = worker[w].plan]
            /\ worker' = [worker EXCEPT ![w].step = "created"]
       ELSE UNCHANGED plans /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ UNCHANGED <<made, cut, gone, number, count, known, wire, anew>>

GiveUp(w) ==
    /\ worker[w].step = "listed" /\ Cardinality(wire) < MostOnTheWire
    /\ wire' = wire \union {[number |-> worker[w].number, plan |-> worker[w].plan]}
    /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, known, anew>>

Arrive(message) ==
    /\ wire' = wire \ {message}
    /\ plans' = IF plans[message.number] = None THEN [plans EXCEPT ![message.number] = message.plan] ELSE plans
    /\ UNCHANGED <<made, cut, gone, number, count, known, worker, anew>>

(* The plans before the newest one are deleted. *)
Verify(w) ==
    LET n == worker[w].number IN
    /\ worker[w].step = "created"
    /\ IF Newest = n \/ ~NewestIsVerified
       THEN /\ worker' = [worker EXCEPT ![w] = IF worker[w].plan.entries = {} THEN Idle ELSE Planned(w)]
            /\ plans' = [m \in Numbers |-> IF m < n THEN None ELSE plans[m]]
       ELSE worker' = [worker EXCEPT ![w] = Idle] /\ UNCHANGED plans
    /\ UNCHANGED <<made, cut, gone, number, count, known, wire, anew>>

Lose ==
    /\ ~LastPlanIsKept
    /\ plans' = [n \in Numbers |-> None]
    /\ UNCHANGED <<made, cut, gone, number, count, known, worker, wire, anew>>

----------------------------------------------------------------------------
(* A worker carries out a plan, its own or another one's, table by table. *)

(* The table of the plan contains it: the next one follows. *)
GoOn(w) ==
    LET next == TableAfter(worker[w].table, worker[w].plan) IN
    IF next = 0
    THEN worker' = [worker EXCEPT ![w] = Idle] /\ known' = Learn(worker[w].plan.contained)
    ELSE worker' = [worker EXCEPT ![w] = [@ EXCEPT !.step = "planned", !.table = next, !.seen = 0]] /\ UNCHANGED known

Look(w) ==
    LET t == worker[w].table IN
    /\ worker[w].step = "planned"
    /\ IF number[t] >= worker[w].number /\ NumberIsLookedUp
       THEN GoOn(w)
       ELSE worker' = [worker EXCEPT ![w] = [@ EXCEPT !.step = "looked", !.seen = number[t]]] /\ UNCHANGED known
    /\ UNCHANGED <<made, cut, gone, plans, number, count, wire, anew>>

Commit(w) ==
    LET plan == worker[w].plan
        t == worker[w].table
        Added(c, i) == <<c, i>> \in plan.entries /\ t \in TablesOf(<<c, i>>) /\ count[t][c][i] < 2
    IN
    /\ worker[w].step = "looked"
    /\ IF number[t] = worker[w].seen \/ ~ConflictIsSeen
       THEN /\ number' = [number EXCEPT ![t] = Max({@, worker[w].number})]
            /\ count' = [count EXCEPT ![t] = [c \in Chains |-> [i \in 1..MostEntries |->
                            IF Added(c, i) THEN count[t][c][i] + 1 ELSE count[t][c][i]]]]
            /\ \/ GoOn(w)
               \/ worker' = [worker EXCEPT ![w].step = "planned"] /\ UNCHANGED known   \* no answer: it looks again
       ELSE worker' = [worker EXCEPT ![w].step = "planned"] /\ UNCHANGED <<number, count, known>>
    /\ UNCHANGED <<made, cut, gone, plans, wire, anew>>

Die(w) ==
    /\ worker[w].step # "idle"
    /\ worker' = [worker EXCEPT ![w] = Idle]
    /\ UNCHANGED <<made, cut, gone, plans, number, count, known, wire, anew>>

----------------------------------------------------------------------------
(* The operator, when all workers have stopped. What was in a table is still counted. *)

HaveStopped ==
    /\ anew < MostAnew /\ wire = {}
    /\ \A w \in Workers : worker[w] = Idle
    /\ \A c \in Chains : ~HasEntries(c)

Drop(t) ==
    /\ HaveStopped /\ number[t] > 0 /\ Existing # {}
    /\ DropFollowsRest => PlanOf(Newest).entries = {}
    /\ number' = [number EXCEPT ![t] = 0] /\ anew' = anew + 1
    /\ UNCHANGED <<made, cut, gone, plans, count, known, worker, wire>>

Remake ==
    /\ HaveStopped /\ Existing # {}
    /\ number' = [number EXCEPT ![1] = 0] /\ anew' = anew + 1
    /\ plans' = [n \in Numbers |-> None]
    /\ UNCHANGED <<made, cut, gone, count, known, worker, wire>>

Next ==
    \/ \E c \in Chains : Decide(c) \/ Cut(c) \/ Forget(c)
    \/ \E w \in Workers : Read(w) \/ Check(w) \/ List(w) \/ Create(w) \/ GiveUp(w) \/ Verify(w) \/ Look(w)
                          \/ Commit(w) \/ Die(w)
    \/ \E message \in wire : Arrive(message)
    \/ \E w \in Workers : Rest(w) \/ Begin(w)
    \/ \E t \in Tables : Drop(t)
    \/ Remake
    \/ Lose

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must always hold. *)

Entries == Chains \X (1..MostEntries)

Has(t, e) == count[t][e[1]][e[2]] > 0

Once == \A t \in Tables, e \in Entries : count[t][e[1]][e[2]] <= 1

InOrder ==
    \A t \in Tables, e \in Entries : Has(t, e) =>
        \A i \in 1..(e[2] - 1) : t \in TablesOf(<<e[1], i>>) => Has(t, <<e[1], i>>)

(* What the owner of a chain believes to be visible, and deletes, is in all tables. *)
KnownIsThere ==
    \A e \in Entries : e[2] <= known[e[1]] \/ e[2] <= cut[e[1]] => \A t \in TablesOf(e) : Has(t, e)

(* What is not in a table is in the plan that is carried out next, or comes into a later one. *)
NothingIsLost ==
    \A e \in Entries : \A t \in TablesOf(e) : e[2] <= made[e[1]] /\ ~Has(t, e) =>
        \/ e \in PlanOf(Newest).entries /\ number[t] < Newest
        \/ e[2] > PlanOf(Newest).contained[e[1]] /\ (PlanOf(Newest).contained[e[1]] > 0 \/ cut[e[1]] = 0)
=============================================================================
