"""Hugging Face's layouts by `model_type`: a closed table."""

from heed.models.layouts.bert import BERT
from heed.models.layouts.gpt2 import GPT2
from heed.models.layouts.layout import HubLayout, Rename
from heed.models.layouts.xlnet import XLNET

LAYOUTS: dict[str, HubLayout] = {"bert": BERT, "gpt2": GPT2, "xlnet": XLNET}

__all__ = ["LAYOUTS", "HubLayout", "Rename"]
