"""The three kinds of work of a validation, each in a directory of its own: capture, reference, judge.

They know nothing of a database: what they need is handed to them as values and files, what they found is handed back.
Reference and judging run in a process of their own (`computer.py`, `zygote.py`, `compute.py`), with the same scrubbed
environment as a framework, so that they can be cancelled at once and cannot take the worker along.
"""
