import contextlib


class FP8GlobalStateManager:
    @staticmethod
    def is_fp8_enabled():
        return False

    @staticmethod
    def is_fp8_calibration():
        return False

    @staticmethod
    def get_fp8_recipe():
        return None

    @staticmethod
    def reset():
        pass


@contextlib.contextmanager
def fp8_autocast(enabled=False, *args, **kwargs):
    assert not enabled, "the stand-in has no fp8"
    yield


@contextlib.contextmanager
def fp8_model_init(enabled=False, *args, **kwargs):
    assert not enabled, "the stand-in has no fp8"
    yield


def check_fp8_support():
    return False, "the stand-in has no fp8"
