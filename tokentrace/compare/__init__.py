"""Compare: what got slower between two runs, and whether it is more than noise."""
