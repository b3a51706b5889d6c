"""REINFORCE: the gradient where a choice was drawn, through which no derivative passes.

    ∇ E[r] = E[ ∇r + (r - b) ∇ log p(choice) ]        Williams 1992, Xu 2015 §4.1

The first term is the ordinary loss, backward through what was read; this file gives the second.

    baseline = MovingAverage()
    loss = task_loss + reinforce(seen.log_prob, reward, baseline.value)
    baseline.update(reward)
"""

import torch
from torch import Tensor, nn

from heed.errors import Refused
from heed.shapes import check


class MovingAverage(nn.Module):
    """The mean of recent rewards, the newest counting most. A module, so that it is saved.

    Read `value` first and `update` afterwards: a baseline that contains the rewards from which it
    is subtracted depends on the choices, and biases the gradient.
    """

    total: Tensor
    count: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise Refused(f"decay must satisfy 0 <= decay < 1; got {decay}")
        self.decay = decay
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    @property
    def value(self) -> Tensor:
        """The mean so far; zero before the first reward."""
        return self.total / self.count.clamp(min=1)

    @torch.no_grad()
    def update(self, reward: Tensor) -> None:
        """Take in the rewards of a batch, of any shape."""
        if reward.numel() == 0:
            return
        self.total.mul_(self.decay).add_(reward.float().mean())
        self.count.mul_(self.decay).add_(1)


def reinforce(
    log_prob: Tensor | None,
    reward: Tensor,
    baseline: Tensor | float = 0.0,
    *,
    entropy: Tensor | None = None,
    bonus: float = 0.0,
) -> Tensor:
    """A loss whose gradient is the score-function estimate of -∇ E[reward], the mean over rows.

    log_prob  of each choice, B H T; all heads and steps of a row act together
    reward    of a row, B; or B T: what step t earned. Where a choice changes what later steps
              earn, give it what it brought in all: reward.flip(1).cumsum(1).flip(1)
    baseline  a number or the reward's shape: anything that does not depend on this choice. It
              leaves the mean as it is, and may lower the variance
    entropy   of what was drawn from, B H T; `bonus` times it is added to the reward, so that
              choices stay open. Without it the estimate is unbiased
    """
    if log_prob is None:
        raise Refused("nothing was drawn: only 'sample' gives the log_prob of a choice")
    if bonus and entropy is None:
        raise Refused(f"bonus={bonus} rewards entropy, and none was given: entropy=seen.entropy")
    level = torch.as_tensor(baseline, dtype=log_prob.dtype, device=log_prob.device)
    pattern = "B" if reward.ndim == 1 else "B T"
    tables = {"log_prob": (log_prob, "B H T"), "reward": (reward, pattern)}
    tables |= {"baseline": (level, pattern)} if level.ndim else {}
    tables |= {"entropy": (entropy, "B H T")} if entropy is not None else {}
    check(**tables)
    credit = (reward.to(log_prob.dtype) - level).detach()
    gain = log_prob.sum(1) * (credit[:, None] if credit.ndim == 1 else credit)  # B T
    if bonus and entropy is not None:
        gain = gain + bonus * entropy.sum(1)
    return -gain.sum(1).mean()
