"""Settings of training in a recipe. Each default exists here, and only here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from heed.settings import Settings

Steps = Annotated[int, Field(ge=1, le=1_000_000_000)]
Share = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Training(Settings):
    """Settings of how weights move, and how often a run is validated, saved and logged."""

    epochs: Steps | None = Field(None, description="passes over the data")
    steps: Steps | None = Field(None, description="the most steps, whatever else is given")
    least_steps: Steps | None = Field(
        None, description="a small corpus is read for more epochs, until there were so many steps"
    )
    batch_tokens: Steps = Field(4096, description="symbols in a batch, padding included")
    accumulate: int = Field(1, ge=1, le=10_000, description="batches whose gradients make a step")

    optimiser: Literal["adamw", "adam"] = "adamw"
    rate: float = Field(1e-3, gt=0, le=10, description="the highest learning rate")
    betas: tuple[Share, Share] = (0.9, 0.98)
    epsilon: float = Field(1e-9, gt=0, le=1)
    weight_decay: float = Field(0.0, ge=0, le=10, description="of matrices; see optimise.py")
    clip: Weight = Field(1.0, description="the greatest norm of the gradient; 0 = any")

    schedule: Literal["inverse-sqrt", "cosine", "plateau", "constant"] = "inverse-sqrt"
    warmup: int = Field(4000, ge=0, le=1_000_000_000, description="steps in which the rate rises")
    floor: float = Field(0.0, ge=0, le=10, description="the lowest rate of cosine and plateau")
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="what a drop leaves of the rate")
    plateau_patience: int = Field(
        3, ge=1, le=1_000_000, description="validations without improvement before a drop"
    )

    smoothing: Share = Field(0.0, description="label smoothing, Szegedy 2016 §7")
    coverage: Weight = Field(0.1, description="weight of the penalty that coverage asks for")
    reinforce: Weight = Field(1.0, description="weight of REINFORCE, where attention draws")
    entropy_bonus: Weight = Field(0.0, description="reward for drawing from open distributions")

    precision: Literal["float32", "bf16"] = "float32"
    compile: bool = Field(False, description="torch.compile the network, and its loss on a GPU")
    capture: bool = Field(False, description="replay steps as CUDA graphs; ignored on the CPU")
    deterministic: bool = Field(False, description="only algorithms that repeat themselves exactly")

    validate_every: Steps | None = Field(
        None, description="steps; if not said each epoch, or as many as make 20 steps"
    )
    save_every: Steps | None = Field(None, description="steps; likewise")
    log_every: Steps | None = Field(50, description="steps; each epoch if null")
    keep: int = Field(3, ge=1, le=1000, description="checkpoints kept")
    average: int = Field(
        0, ge=0, le=1000, description="how many of the last checkpoints the end averages; 0 = none"
    )
    patience: Steps | None = Field(
        None, description="validations without improvement before training stops; null = never"
    )

    @model_validator(mode="after")
    def _coherent(self) -> Training:
        if self.epochs is None and self.steps is None:
            raise ValueError("give the length of the training: epochs or steps")
        if self.least_steps is not None and self.epochs is None:
            raise ValueError(
                f"least_steps={self.least_steps} adds epochs, but epochs are not given: set "
                "least_steps=null, or give epochs"
            )
        if self.average > self.keep:
            raise ValueError(
                f"average={self.average} needs as many checkpoints, but keep={self.keep}; "
                f"set keep={self.average}"
            )
        if self.floor > self.rate:
            raise ValueError(f"floor={self.floor} is above rate={self.rate}")
        return self
