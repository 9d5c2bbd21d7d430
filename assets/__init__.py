"""The assets of the clickstream: clicks that are stored, and sessions that are computed from them. Copy this
package to begin with a stream of your own."""

APPLICATION = "clicks-to-lake"
STREAM = "clickstream"
