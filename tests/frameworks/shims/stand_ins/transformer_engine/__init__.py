"""Plain torch modules with the names, arguments and parameters of Transformer Engine's: for tests, on a CPU."""

from . import common, pytorch

__all__ = ["common", "pytorch"]
__version__ = "2.6.0"
