"""A step minimises the mean over its symbols, does not wait for the GPU, and is skipped on NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heed.training.objective import Loss
from heed.training.settings import Training
from tests.training.fitting import Batches, Goal, Run, Spoilt, same


def test_accumulated_batches_move_weights_as_one_large_batch_does() -> None:
    runs = []
    for accumulate, size in ((4, 3), (1, 12)):
        settings = Training(steps=6, accumulate=accumulate, warmup=0, clip=0.1)
        run = Run(settings, chance=False)
        run.batches = Batches(size=size)
        runs.append((run, run.go()))
    (one, some), (two, others) = runs
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for m, n in zip(some, others, strict=True):
        assert m.tokens == n.tokens
        assert float(m.loss) == pytest.approx(float(n.loss), rel=1e-4)
        assert float(m.parts["nll"]) == pytest.approx(float(n.parts["nll"]), rel=1e-4)
        assert float(m.norm) == pytest.approx(float(n.norm), rel=1e-3)


def test_bf16_changes_little_and_the_weights_stay_float32() -> None:
    plain = Run(Training(steps=3, warmup=0), chance=False).go()
    run = Run(Training(steps=3, warmup=0, precision="bf16"), chance=False)
    losses = [(float(a.loss), float(b.loss)) for a, b in zip(plain, run.go(), strict=True)]
    assert all(a == pytest.approx(b, rel=2e-2) and a != b for a, b in losses)
    assert all(p.dtype == torch.float32 for p in run.model.parameters())


@pytest.mark.slow
def test_compilation_changes_nothing() -> None:
    plain = Run(Training(steps=6, warmup=0), chance=False).go()
    torch.compiler.reset()
    run = Run(Training(steps=6, warmup=0, compile=True), chance=False)
    for a, b in zip(plain, run.go(), strict=True):
        assert float(a.loss) == pytest.approx(float(b.loss), rel=1e-4)
    assert run.model._compiled_call_impl is not None
    assert not any("_orig_mod" in name for name in run.save()[0]["model"])


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_step_with_nan_changes_nothing_and_is_counted(clip: float) -> None:
    run = Run(Training(steps=5, warmup=0, clip=clip))
    run.goal = Spoilt({3, 4})
    run.go(until=2)
    before = run.save()[0]
    run.goal.call = 2
    moments = run.go(until=4)
    after = run.save()[0]
    assert [bool(m.skipped) for m in moments] == [True, True]
    assert not torch.isfinite(moments[0].loss)
    assert same(
        {g: before[g] for g in ("model", "optimiser")},
        {g: after[g] for g in ("model", "optimiser")},
    )
    assert (run.progress.skipped, run.progress.spoilt) == (2, 2)
    (last,) = run.go()
    assert not last.skipped
    assert (run.progress.skipped, run.progress.spoilt) == (2, 0)
    assert not same({"model": after["model"]}, {"model": run.save()[0]["model"]})


class Endless(Spoilt):
    """Infinite at the given batches, though every gradient is finite."""

    def forward(self, model: Any, batch: Any) -> Loss:
        loss = Goal.forward(self, model, batch)
        self.call += 1
        return Loss(loss.total + float("inf"), loss.parts) if self.call in self.at else loss


def test_a_step_with_an_infinite_loss_is_skipped_though_its_gradient_is_finite() -> None:
    run = Run(Training(steps=3, warmup=0))
    run.goal = Endless({2})
    run.go(until=1)
    before = run.save()[0]["model"]
    run.goal.call = 1
    (moment,) = run.go(until=2)
    assert moment.norm.isfinite()
    assert bool(moment.skipped)
    assert same({"model": before}, {"model": run.save()[0]["model"]})


def test_a_custom_optimiser_is_spared_too() -> None:
    run = Run(Training(steps=4, warmup=0))
    run.goal = Spoilt({1})
    run.optimiser = torch.optim.SGD(run.model.parameters(), lr=0.1)
    before = run.save()[0]["model"]
    run.go(until=1)
    assert same({"model": before}, {"model": run.save()[0]["model"]})
    run.go()
    assert all(p.isfinite().all() for p in run.model.parameters())
    assert not same({"model": before}, {"model": run.save()[0]["model"]})


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_does_not_wait_for_the_gpu(accumulate: int) -> None:
    with torch.device("cuda"):
        run = Run(Training(steps=6, accumulate=accumulate))
    run.go(until=2)
    try:
        torch.cuda.set_sync_debug_mode("error")
        moments = run.go()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [m.step for m in moments] == [3, 4, 5, 6]
    assert all(m.loss.is_cuda and m.loss.isfinite() for m in moments)
