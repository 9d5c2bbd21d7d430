"""The clickstream: what is stored, and what is computed from it. Copy it and begin with your own."""

APPLICATION = "clicks-to-lake"
STREAM = "clickstream"
