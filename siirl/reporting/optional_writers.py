"""Packages of optional writers; imports nothing."""

OPTIONAL = {
    "mlflow": ("mlflow", "mlflow-skinny sqlalchemy alembic"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}
"""Module of each writer that needs another package, and the packages for pip."""
