"""The assets of the clickstream: stored clicks, and the sessions that are computed from them."""

APPLICATION = "clicks-to-lake"
STREAM = "clickstream"
