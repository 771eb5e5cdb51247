import torch


class TransformerEngineBaseModule(torch.nn.Module):
    save_original_input = False

    def set_tensor_parallel_group(self, group):
        self.tp_group = group
