"""Three writers, an integrator and two reviewers on a small repository: the demo behind `make demo`."""
