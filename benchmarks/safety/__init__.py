"""How far an arm moves after faults of the suite, a driver, a controller or the policy."""
