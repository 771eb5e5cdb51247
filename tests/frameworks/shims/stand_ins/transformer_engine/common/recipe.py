class Recipe:
    pass


class DelayedScaling(Recipe):
    def __init__(self, *args, **kwargs):
        raise RuntimeError("the stand-in has no fp8")


class Format:
    E4M3 = "e4m3"
    HYBRID = "hybrid"


class Float8CurrentScaling(DelayedScaling):
    pass


class Float8BlockScaling(DelayedScaling):
    pass


class MXFP8BlockScaling(DelayedScaling):
    pass
