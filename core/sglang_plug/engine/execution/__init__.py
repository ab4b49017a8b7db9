"""Execution of steps: the model runner and the pipeline of steps in flight."""
