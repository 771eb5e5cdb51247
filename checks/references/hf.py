"""Hugging Face's model as a reference: loaded as trained, and made a float64 model that deserves the name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from checks.errors import BadRequest

Attention = Literal["eager", "sdpa"]

# transformers is found, not imported: that takes seconds, and most processes that load this build no model.
PACKAGE = Path(str(find_spec("transformers").origin)).parent  # type: ignore[union-attr]
TORCH = Path(torch.__file__).parent


class CastLifter(TorchFunctionMode):
    """Answers every request for float32 made of a float64 tensor with float64; `places` says where.

    Inside transformers, whole numbers asked for as float32 and new float32 tensors become float64 too: a count that is
    divided in float32 would round.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: set[str] = set()

    @property
    def places(self) -> tuple[str, ...]:
        """`file:function:line` of each cast that was lifted, once, sorted; files relative to their package's parent."""
        return tuple(sorted(self._places))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        asked = dict(kwargs or {})
        if not asks_for_float32(func, args, asked):
            return func(*args, **asked)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        file, place = find_caller()
        ours = source is not None and source.dtype == torch.float64
        whole = source is None or not (source.is_floating_point() or source.is_complex())
        if not ours and not (whole and file.is_relative_to(PACKAGE)):
            return func(*args, **asked)
        self._places.add(place)
        if func is torch.Tensor.float:
            return torch.Tensor.double(*args)
        kept = args if source is None else args[1:]
        widened = tuple(widen_request(value) for value in kept)
        call = widened if source is None else (source, *widened)
        return func(*call, **{name: widen_request(value) for name, value in asked.items()})


def asks_for_float32(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a torch function names float32 as the dtype of its result."""
    if func is torch.Tensor.float:
        return True
    if func is torch.Tensor.view:  # with a dtype it reinterprets bits
        return False
    values = (*args[1:], *kwargs.values()) if args and isinstance(args[0], torch.Tensor) else (*args, *kwargs.values())
    if any(value is torch.float32 for value in values):
        return True
    like_another = func is torch.Tensor.to or func is torch.Tensor.type_as
    return like_another and any(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in values)


def widen_request(value: Any) -> Any:
    """float64 for float32, and a float64 example for a float32 one (`x.to(other)`); anything else as it is."""
    if value is torch.float32:
        return torch.float64
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.new_empty(0, dtype=torch.float64)
    return value


def find_caller() -> tuple[Path, str]:
    """The file that called torch, and `file:function:line` of the call."""
    frame = sys._getframe(2)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(TORCH):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    shown = file.relative_to(PACKAGE.parent) if file.is_relative_to(PACKAGE.parent) else Path(file.name)
    return file, f"{shown.as_posix()}:{frame.f_code.co_name}:{frame.f_lineno}"


@contextmanager
def lift_casts() -> Iterator[CastLifter]:
    """Run a float64 model, forward and backward, with its float32 casts lifted; yields what lists their `places`.

    The default dtype is float64 within, so it changes the whole process: one thread at a time.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with CastLifter() as lifter:
            yield lifter
    finally:
        torch.set_default_dtype(before)


def load_hf(checkpoint: Path, *, dtype: torch.dtype, attention: Attention = "sdpa") -> nn.Module:
    """The checkpoint's transformers model with weights in `dtype`, in training mode, without cache, eager experts.

    In float64 the buffers that follow from the config (rotary frequencies, embedding scale) are computed in float64.
    Raises BadRequest for a checkpoint that transformers cannot load whole, or an attention that the model lacks.
    """
    import transformers

    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=dtype,
            attn_implementation=attention,
            experts_implementation="eager",  # grouped_mm has no float64 kernel
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise BadRequest(
            "model", f"transformers cannot load {checkpoint} ({first})", "give a complete checkpoint"
        ) from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(kind):
            found = f"{checkpoint} has {kind.replace('_', ' ')}: {sorted(map(str, info[kind]))[0]}"
            raise BadRequest("model", found, "give the checkpoint of its config.json")
    model.config.use_cache = False
    if dtype == torch.float64:
        model.double()
        recompute_buffers(model)
    return model.train()  # type: ignore[no-any-return]


def recompute_buffers(model: nn.Module) -> None:
    """Compute in float64 every buffer that no checkpoint holds; raises BadRequest for one of unknown definition."""
    for path, module in model.named_modules():
        derived = [
            name
            for name, buffer in module.named_buffers(recurse=False)
            if name in module._non_persistent_buffers_set and buffer.is_floating_point()
        ]
        if not derived:
            continue
        with lift_casts():
            if hasattr(module, "compute_default_rope_parameters"):
                recompute_rotary(module)
            elif hasattr(module, "scalar_embed_scale"):
                module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
            else:
                found = f"{path}.{derived[0]} of {type(module).__name__} has no known definition in float64"
                raise BadRequest("model", found, "use a family whose buffers are rotary frequencies or a scale")


def recompute_rotary(module: Any) -> None:
    """Replace a rotary embedding's inverse frequencies by those its own definition gives in float64."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    by_layer_type = module.rope_type if isinstance(module.rope_type, dict) else {None: module.rope_type}
    for layer_type, rope_type in by_layer_type.items():
        define = module.compute_default_rope_parameters if rope_type == "default" else ROPE_INIT_FUNCTIONS[rope_type]
        frequencies, _ = define(module.config, **({} if layer_type is None else {"layer_type": layer_type}))
        prefix = "" if layer_type is None else f"{layer_type}_"
        setattr(module, f"{prefix}inv_freq", frequencies)
        setattr(module, f"{prefix}original_inv_freq", frequencies.clone())


def shared_code(model: nn.Module) -> tuple[str, ...]:
    """The transformers modules that define what `model` computes, with their version, sorted; none for a plain model.

    A verdict against a reference of these modules is blind to them. The attention, mask and loss code that the model's
    classes call is included beside the classes.
    """
    modules = {type(module).__module__ for module in model.modules()}
    used = {name for name in modules if name.split(".")[0] == "transformers"}
    if not used:
        return ()
    used |= {"transformers.masking_utils", "transformers.loss.loss_utils"}
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) == "sdpa":
        used.add("transformers.integrations.sdpa_attention")
    if any(uses_scaled_rope(module) for module in model.modules()):
        used.add("transformers.modeling_rope_utils")
    release = version("transformers")
    return tuple(f"{name} {release}" for name in sorted(used))


def uses_scaled_rope(module: nn.Module) -> bool:
    """Whether a rotary embedding takes its frequencies from transformers' shared scaling functions."""
    kind = getattr(module, "rope_type", "default")
    return any(each != "default" for each in (kind.values() if isinstance(kind, dict) else [kind]))
