"""From distributions to sequences: greedy, beam and sampling, over `step` and `select`."""

from heed.decoding.beam import beam
from heed.decoding.greedy import greedy
from heed.decoding.sampling import sample
from heed.decoding.stepper import Hypothesis, Step, Stepper

__all__ = ["Hypothesis", "Step", "Stepper", "beam", "greedy", "sample"]
