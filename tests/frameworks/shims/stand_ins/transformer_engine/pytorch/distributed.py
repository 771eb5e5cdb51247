import contextlib

import torch


class CudaRNGStatesTracker:
    def __init__(self):
        self.reset()

    def reset(self):
        self.states_, self.seeds_ = {}, set()

    def get_states(self):
        return dict(self.states_)

    def set_states(self, states):
        self.states_ = states

    def add(self, name, seed):
        self.seeds_.add(seed)
        self.states_[name] = torch.get_rng_state()


def checkpoint(
    function, *args, distribute_saved_activations=False, get_rng_state_tracker=None, tp_group=None, **kwargs
):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def is_fp8_activation_recompute_enabled():
    return False


def in_fp8_activation_recompute_phase():
    return False


@contextlib.contextmanager
def activation_recompute_forward(activation_recompute=False, recompute_phase=False):
    yield
