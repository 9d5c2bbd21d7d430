"""A KCL 3.x worker and leader, modelled from what is known of their protocol, to share tables with ours.

Nothing here uses the package's own reading or writing of rows: a mistake there must not hide itself. Only the
assignment rules are shared: `kcl_dagster.leader.assignment.variance` and `tests.conformance.rules.lease_count`. The
conformance cases hold that both agree with the KCL.
"""
