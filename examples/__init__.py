"""Runnable examples: each makes a real repository, runs a graph on it through the console, and checks what landed."""
