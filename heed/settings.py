"""What all settings have in common: those of recipes, of config.json, of tasks and of files."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings that refuse unknown keys and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
