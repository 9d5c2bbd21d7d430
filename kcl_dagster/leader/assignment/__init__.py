"""Assignment of leases to workers: five policies with one interface."""
