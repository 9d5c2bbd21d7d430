"""Records that were made to be expensive: what a fetch spends on them, and a search for worse ones."""
