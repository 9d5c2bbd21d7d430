"""A KCL 3.x worker and leader, modelled from what is known of their protocol, to share tables with ours.

Nothing here uses the package's own reading or writing of rows: a mistake there must not hide itself. Only the two
assignment rules are the package's, whose agreement with the KCL the conformance cases hold.
"""
