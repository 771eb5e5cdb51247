import torch
import torch.nn.functional as F

from .base import TransformerEngineBaseModule


def mappings():
    from megatron.core.tensor_parallel import mappings

    return mappings


def mark(parameter, dim, *, parallel=True, sequence=False):
    """What Megatron reads off a parameter: whether, and along which dimension, it is divided."""
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = parallel, dim, 1
    if sequence:
        parameter.sequence_parallel = True


def make_weight(rows, columns, dtype, init_method):
    weight = torch.nn.Parameter(torch.empty(rows, columns, dtype=dtype))
    with torch.no_grad():
        (init_method or (lambda tensor: torch.nn.init.normal_(tensor, std=0.02)))(weight)
    return weight


def normalise(x, weight, bias, *, eps, zero_centered, rms):
    weight = weight.float() + 1 if zero_centered else weight.float()
    shape = (x.shape[-1],)
    if rms:
        return F.rms_norm(x.float(), shape, weight, eps).to(x.dtype)
    return F.layer_norm(x.float(), shape, weight, bias.float(), eps).to(x.dtype)


class RMSNorm(TransformerEngineBaseModule):
    rms = True

    def __init__(
        self,
        hidden_size=None,
        eps=1e-5,
        sequence_parallel=False,
        zero_centered_gamma=False,
        params_dtype=None,
        normalized_shape=None,
        **kwargs,
    ):
        super().__init__()
        size = hidden_size or normalized_shape
        self.eps, self.zero_centered = eps, zero_centered_gamma
        make = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = torch.nn.Parameter(make(size, dtype=params_dtype))
        self.weight.sequence_parallel = sequence_parallel
        if not self.rms:
            self.bias = torch.nn.Parameter(torch.zeros(size, dtype=params_dtype))
            self.bias.sequence_parallel = sequence_parallel

    def forward(self, x):
        bias = getattr(self, "bias", None)
        return normalise(x, self.weight, bias, eps=self.eps, zero_centered=self.zero_centered, rms=self.rms)


class LayerNorm(RMSNorm):
    rms = False


class Linear(TransformerEngineBaseModule):
    def __init__(
        self,
        in_features,
        out_features,
        sequence_parallel=False,
        tp_group=None,
        tp_size=1,
        init_method=None,
        bias=True,
        return_bias=False,
        params_dtype=None,
        parallel_mode=None,
        **kwargs,
    ):
        super().__init__()
        self.tp_group, self.tp_size, self.parallel_mode = tp_group, tp_size, parallel_mode
        self.sequence_parallel = sequence_parallel and tp_size > 1
        self.return_bias, self.use_bias = return_bias, bias
        self.in_features = in_features // (tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (tp_size if parallel_mode == "column" else 1)
        self.weight = make_weight(self.out_features, self.in_features, params_dtype, init_method)
        self.bias = torch.nn.Parameter(torch.zeros(self.out_features, dtype=params_dtype)) if bias else torch.Tensor()
        mark(self.weight, 1 if parallel_mode == "row" else 0)  # marked as divided in every mode
        if bias and parallel_mode == "column":
            mark(self.bias, 0)
        if bias and parallel_mode == "row":
            mark(self.bias, 0, parallel=False, sequence=self.sequence_parallel)

    def forward(self, x, is_first_microbatch=None, **kwargs):
        if self.parallel_mode == "column" and self.tp_size > 1:
            if self.sequence_parallel:
                x = mappings().gather_from_sequence_parallel_region(x, group=self.tp_group)
            else:
                x = mappings().copy_to_tensor_model_parallel_region(x, group=self.tp_group)
        y = F.linear(x, self.weight)
        if self.parallel_mode == "row" and self.tp_size > 1:
            if self.sequence_parallel:
                y = mappings().reduce_scatter_to_sequence_parallel_region(y, group=self.tp_group)
            else:
                y = mappings().reduce_from_tensor_model_parallel_region(y, group=self.tp_group)
        if self.use_bias and not self.return_bias:
            y = y + self.bias
        return (y, self.bias) if self.return_bias else y


class LayerNormLinear(Linear):
    def __init__(
        self,
        in_features,
        out_features,
        eps=1e-5,
        normalization="LayerNorm",
        zero_centered_gamma=False,
        return_layernorm_output=False,
        **kwargs,
    ):
        super().__init__(in_features, out_features, **kwargs)
        self.eps, self.rms, self.zero_centered = eps, normalization == "RMSNorm", zero_centered_gamma
        make, dtype = torch.zeros if zero_centered_gamma else torch.ones, kwargs.get("params_dtype")
        self.layer_norm_weight = torch.nn.Parameter(make(in_features, dtype=dtype))
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel
        self.layer_norm_bias = None
        if not self.rms:
            self.layer_norm_bias = torch.nn.Parameter(torch.zeros(in_features, dtype=dtype))
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel

    def forward(self, x, is_first_microbatch=None, **kwargs):
        weight, bias = self.layer_norm_weight, self.layer_norm_bias
        return super().forward(normalise(x, weight, bias, eps=self.eps, zero_centered=self.zero_centered, rms=self.rms))


class GroupedLinear(TransformerEngineBaseModule):
    def __init__(
        self,
        num_gemms,
        in_features,
        out_features,
        tp_size=1,
        init_method=None,
        bias=True,
        return_bias=False,
        params_dtype=None,
        parallel_mode=None,
        **kwargs,
    ):
        super().__init__()
        assert tp_size == 1, "Megatron communicates between experts itself"
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        for index in range(num_gemms):
            weight = make_weight(out_features, in_features, params_dtype, init_method)
            mark(weight, 1 if parallel_mode == "row" else 0)
            self.register_parameter(f"weight{index}", weight)
            if bias:
                zeros = torch.zeros(out_features, dtype=params_dtype)
                self.register_parameter(f"bias{index}", torch.nn.Parameter(zeros))

    def forward(self, x, m_splits, is_first_microbatch=None, **kwargs):
        added = self.use_bias and not self.return_bias
        parts = [
            F.linear(part, getattr(self, f"weight{index}"), getattr(self, f"bias{index}") if added else None)
            for index, part in enumerate(torch.split(x, list(m_splits)))
        ]
        y = torch.cat(parts)
        return (y, [getattr(self, f"bias{index}") for index in range(self.num_gemms)]) if self.return_bias else y
