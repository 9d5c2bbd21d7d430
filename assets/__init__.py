"""The clickstream: what lands, and what is made of it. An example of what a user writes: no mechanism."""

APPLICATION = "clicks-to-lake"
