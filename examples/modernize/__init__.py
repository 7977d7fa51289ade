"""Real tools on real code: the demo behind `make demo-real`."""
