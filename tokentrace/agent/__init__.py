"""Agent: the part that runs inside a serving process. Standard library only."""
