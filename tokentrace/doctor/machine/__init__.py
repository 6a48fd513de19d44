"""The checks of layers 5 to 1: what the machine, its drivers and the server's process allow to be seen and done."""
