def apply_rotary_pos_emb(*args, **kwargs):
    raise RuntimeError("the stand-in has no fused rotary embedding: set apply_rope_fusion=False")


apply_fused_qkv_rotary_pos_emb = apply_rotary_pos_emb
