"""Real servers for tests and the demo: they run on loopback and misbehave on request."""
