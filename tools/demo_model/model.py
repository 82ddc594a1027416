"""The gpt-oss architecture in PyTorch, written for training a small model on one GPU.

Every token passes through all experts and the ones that were not chosen get weight zero: at this
size one wide matrix product is faster than sorting tokens by expert.
"""
import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from mxfp4 import fake_quantize


@dataclass
class Config:
    vocab_size: int = 6144
    hidden_size: int = 384
    intermediate_size: int = 256
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 16
    experts_per_token: int = 4
    context: int = 2048
    sliding_window: int = 128
    rope_theta: float = 150000.0
    rope_factor: float = 32.0
    rope_original_context: int = 4096
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    norm_epsilon: float = 1e-5
    swiglu_limit: float = 7.0
    swiglu_alpha: float = 1.702
    tie_embeddings: bool = True

    def to_dict(self) -> dict:
        return asdict(self)


def yarn_tables(config: Config, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [length, head_dim / 2], with YaRN's attention factor on both."""
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)

    def turning_dimension(turns: float) -> float:
        return half * math.log(config.rope_original_context / (turns * 2 * math.pi)) / math.log(config.rope_theta)

    low = max(turning_dimension(config.rope_beta_fast), 0)
    high = min(turning_dimension(config.rope_beta_slow), config.head_dim - 1)
    stretched = ((torch.arange(half, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    frequency = frequency * (1 - stretched) + frequency / config.rope_factor * stretched
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    concentration = 0.1 * math.log(config.rope_factor) + 1.0
    return (angles.cos() * concentration).float(), (angles.sin() * concentration).float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon))


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size)
        self.k_proj = nn.Linear(config.hidden_size, kv_size)
        self.v_proj = nn.Linear(config.hidden_size, kv_size)
        self.o_proj = nn.Linear(q_size, config.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(config.heads))

    def forward(self, x, cos, sin, attend):
        batch, length, _ = x.shape

        def split(projected):
            return projected.view(batch, length, -1, self.config.head_dim).transpose(1, 2)

        q = rotate(split(self.q_proj(x)), cos, sin)
        k = rotate(split(self.k_proj(x)), cos, sin)
        out, logsumexp = attend(q, k, split(self.v_proj(x)))
        # A sink is one more logit in the softmax with no value behind it, so all it does is
        # scale the result by the share that the real keys keep.
        share = torch.sigmoid(logsumexp.float() - self.sinks[:, None])
        out = out * share.unsqueeze(-1).to(out.dtype)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Experts(nn.Module):
    """Rows of gate_up are interleaved: even rows are the gate, odd rows the linear part."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.quantized = False
        count, hidden, inner = config.experts, config.hidden_size, config.intermediate_size
        self.router = nn.Linear(hidden, count)
        self.gate_up = nn.Parameter(torch.empty(count, 2 * inner, hidden))
        self.gate_up_bias = nn.Parameter(torch.zeros(count, 2 * inner))
        self.down = nn.Parameter(torch.empty(count, hidden, inner))
        self.down_bias = nn.Parameter(torch.zeros(count, hidden))

    def routing(self, x):
        """Weights [tokens, experts], zero for experts not chosen, and the loss that keeps them busy evenly."""
        logits = F.linear(x.float(), self.router.weight.float(), self.router.bias.float())
        chosen, index = logits.topk(self.config.experts_per_token, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, index, chosen.softmax(-1))
        used = (weights > 0).float().mean(0) / self.config.experts_per_token
        balance_loss = self.config.experts * (used * logits.softmax(-1).mean(0)).sum()
        return weights, balance_loss

    def forward(self, x):
        config = self.config
        tokens = x.reshape(-1, config.hidden_size)
        with torch.autocast(x.device.type, enabled=False):
            weights, balance_loss = self.routing(tokens)
        gate_up = fake_quantize(self.gate_up) if self.quantized else self.gate_up
        down = fake_quantize(self.down) if self.quantized else self.down
        hidden = F.linear(tokens, gate_up.flatten(0, 1), self.gate_up_bias.flatten())
        gate, up = hidden.unflatten(-1, (config.experts, -1, 2)).unbind(-1)
        gate = gate.clamp(max=config.swiglu_limit)
        up = up.clamp(-config.swiglu_limit, config.swiglu_limit)
        inner = gate * torch.sigmoid(config.swiglu_alpha * gate) * (up + 1)
        inner = (inner * weights.unsqueeze(-1).to(inner.dtype)).flatten(-2)
        out = F.linear(inner, down.transpose(0, 1).flatten(1)) + weights.to(inner.dtype) @ self.down_bias.to(inner.dtype)
        return out.view_as(x), balance_loss


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.mlp = Experts(config)

    def forward(self, x, cos, sin, attend, dropout):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x), cos, sin, attend), dropout, self.training)
        out, balance_loss = self.mlp(self.post_attention_layernorm(x))
        return x + F.dropout(out, dropout, self.training), balance_loss


class GptOss(nn.Module):
    def __init__(self, config: Config, dropout: float = 0.0):
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.lm_head = None if config.tie_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        cos, sin = yarn_tables(config, config.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.attention = None
        self.initialize()

    def initialize(self):
        deviation = 0.02
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or name.endswith("sinks") or "norm" in name:
                continue
            residual = name.endswith(("o_proj.weight", "mlp.down"))
            nn.init.normal_(parameter, std=deviation / math.sqrt(2 * self.config.layers) if residual else deviation)

    def set_quantized(self, on: bool):
        for layer in self.layers:
            layer.mlp.quantized = on

    def forward(self, ids):
        """Final hidden states [batch, length, hidden] and the mean balance loss."""
        length = ids.shape[1]
        if self.attention is None:
            self.attention = make_attention(self.config, ids.device)
        sliding, full = self.attention(length)
        x = F.dropout(self.embed_tokens(ids), self.dropout, self.training)
        losses = []
        for index, layer in enumerate(self.layers):
            attend = sliding if index % 2 == 0 else full
            x, balance_loss = layer(x, self.cos[:length], self.sin[:length], attend, self.dropout)
            losses.append(balance_loss)
        return self.norm(x), torch.stack(losses).mean()

    def logits(self, hidden):
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(hidden, head.to(hidden.dtype))


def make_attention(config: Config, device: torch.device):
    """A function from a length to two functions (sliding, full) from q, k, v to output and logsumexp."""
    if device.type == "cuda":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def build(length, window):
            def visible(b, h, query, key):
                return (key <= query) & (query - key < window)

            mask = create_block_mask(visible, None, None, length, length, device=device)
            return lambda q, k, v: flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
    else:
        def build(length, window):
            distance = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
            hidden = (distance < 0) | (distance >= window)

            def attend(q, k, v):
                groups = q.shape[1] // k.shape[1]
                k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
                scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
                scores = scores.masked_fill(hidden, float("-inf"))
                return scores.softmax(-1).to(v.dtype) @ v, scores.logsumexp(-1)

            return attend

    built = {}

    def pair(length):
        if length not in built:
            built[length] = build(length, config.sliding_window), build(length, config.context)
        return built[length]

    return pair
