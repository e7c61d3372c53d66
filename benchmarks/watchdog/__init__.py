"""How far an arm with velocity controllers moves after a process of the suite fails."""
