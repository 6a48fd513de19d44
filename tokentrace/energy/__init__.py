"""From what a power sensor said to the joules of a request: used by the power probe and for power dumps."""
