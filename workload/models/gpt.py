"""A small decoder-only language model with a modern (Llama-style) architecture.

Decoder of Vaswani et al. 2017 (arXiv:1706.03762) with pre-normalization, RMSNorm (1910.07467),
rotary positions (RoFormer, 2104.09864), SwiGLU (2002.05202), and tied embeddings (1608.05859).
"""

import math
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, each of shape (positions, head_width / 2)."""

INITIAL_STD: Final = 0.02
"""Standard deviation of the initial weights, as in GPT-2."""


class Gpt(nn.Module):
    """Decoder that maps tokens N x T (int64, T up to `context`) to logits N x T x `tokens`.

    `tokens` is the size of the vocabulary. Attention is causal. There are no buffers, so the state
    consists of weights only.
    """

    def __init__(
        self, tokens: int, context: int, layers: int, heads: int, width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.context = context
        self.head_width = width // heads
        self.embedding = nn.Embedding(tokens, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.apply(_initialize)
        # Scale down the initial weights of the residual branches as the number of blocks grows, as
        # in GPT-2.
        for name, weight in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(weight, std=INITIAL_STD / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position.

        Raise ValueError if there are more tokens than the context allows.
        """
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens exceed the context of {self.context}")
        rotation = rotations(length, self.head_width, tokens.device)
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, rotation)
        return functional.linear(self.norm(x), self.embedding.weight)


class Block(nn.Module):
    """Attention and a feed-forward network, both residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Map N x T x width to the same shape."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        changed: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return changed


class Attention(nn.Module):
    """Causal multi-head attention with the fastest kernel available on the device."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Map N x T x width to the same shape."""
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.queries_keys_values(x).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(
            rotated(queries, rotation),
            rotated(keys, rotation),
            values,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        mixed: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU with about as many weights as a network with a hidden layer of 4 x `width`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 64 * math.ceil(width * 8 / 3 / 64)
        self.gate_and_values = nn.Linear(width, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map N x T x width to the same shape."""
        gate, values = self.gate_and_values(x).chunk(2, dim=-1)
        changed: Tensor = self.out(functional.silu(gate) * values)
        return changed


def rotations(length: int, head_width: int, device: torch.device) -> Rotation:
    """Return the cosine and the sine of the rotary angle for each position and feature pair."""
    pairs = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)
    angles = torch.outer(
        torch.arange(length, device=device, dtype=torch.float32), 10_000 ** (-pairs / head_width)
    )
    return angles.cos(), angles.sin()


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair of features of `x`, which has the shape N x heads x T x head width.

    The dot product of a rotated query and a rotated key depends on their relative position, not on
    their absolute positions.
    """
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
