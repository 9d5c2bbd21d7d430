"""Sinks, which store batches. Sinks of tables and folders store each record once, even if a batch is written
repeatedly. The sink `ForeachBatchSink` calls a function of the user, which has to recognise repeated parts
itself."""
