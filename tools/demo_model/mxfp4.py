"""The MXFP4 format: blocks of 32 four-bit values (E2M1) that share one power-of-two scale (E8M0).

Training (`fake_quantize`), evaluation and export (`pack`) go through the same `block_exponents` and
`round_to_grid`, so the exported bytes are exactly the numbers that the model was trained with.
"""
import torch

BLOCK = 32
GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
EXPONENT_BIAS = 127


def round_to_grid(scaled: torch.Tensor) -> torch.Tensor:
    """Nearest E2M1 value, ties to the even code, magnitudes above 6 saturate."""
    size = scaled.abs().clamp(max=6.0)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, scaled)


def block_exponents(blocks: torch.Tensor) -> torch.Tensor:
    """The power of two for each block [..., 32] that loses least.

    The usual choice, floor(log2(largest)) - 2, saturates values between 6 and 8 units; the next
    power avoids that at the price of a coarser grid. Neither wins always, so both are tried.
    """
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
    low = torch.floor(torch.log2(largest)) - 2
    high = low + 1
    low_error = (round_to_grid(blocks * torch.exp2(-low)) * torch.exp2(low) - blocks).square().sum(-1, keepdim=True)
    high_error = (round_to_grid(blocks * torch.exp2(-high)) * torch.exp2(high) - blocks).square().sum(-1, keepdim=True)
    return torch.where(low_error <= high_error, low, high)


def quantize(weight: torch.Tensor) -> torch.Tensor:
    """The values that a weight [..., inputs] has after a round trip through MXFP4."""
    blocks = weight.detach().float().unflatten(-1, (-1, BLOCK))
    scale = torch.exp2(block_exponents(blocks))
    return (round_to_grid(blocks / scale) * scale).flatten(-2)


def fake_quantize(weight: torch.Tensor) -> torch.Tensor:
    """Quantized forward, straight-through backward."""
    return weight + (quantize(weight) - weight).detach()


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., rows, inputs] -> blocks [..., rows, inputs/32, 16] and scales [..., rows, inputs/32], both U8.

    The first of two neighbouring values sits in the low half of a byte; code 8 is the sign bit.
    """
    blocks = weight.detach().float().unflatten(-1, (-1, BLOCK))
    exponent = block_exponents(blocks)
    rounded = round_to_grid(blocks * torch.exp2(-exponent))
    codes = torch.searchsorted(GRID, rounded.abs().contiguous()).to(torch.uint8)
    codes |= (torch.signbit(rounded) & (codes > 0)).to(torch.uint8) << 3
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, (exponent.squeeze(-1) + EXPONENT_BIAS).to(torch.uint8)


def unpack(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    values = GRID[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
    return (values * torch.exp2(scales.float() - EXPONENT_BIAS).unsqueeze(-1)).flatten(-2)
