"""Plumbline's recorder: records the training step of any torch framework, without edits to it."""

__version__ = "0.1.0"
