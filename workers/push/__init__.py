"""Captures that were recorded elsewhere: sent to a server whole and checked, judged there by what they hold alone."""
