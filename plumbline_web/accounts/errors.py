"""What the rules about people and their keys refuse."""

from __future__ import annotations


class Refused(Exception):
    """A change that a rule forbids; `code` is for programs, the text is one sentence for people."""

    def __init__(self, code: str, sentence: str, *, field: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.field = field
        """the form's or the document's field that is wrong; empty where it is none"""
