"""Which worker should hold which lease: five policies behind one interface."""
