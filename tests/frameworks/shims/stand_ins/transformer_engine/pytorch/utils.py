import torch


class SplitAlongDim:
    @staticmethod
    def apply(x, dim, sections, squeeze=False):
        return torch.split(x, sections, dim=dim)


def make_weak_ref(x):
    return x
