from . import base, linear

__all__ = ["base", "linear"]
