"""Packages of the writers that not every installation has; imports nothing."""

OPTIONAL = {
    "mlflow": ("mlflow", "mlflow-skinny sqlalchemy alembic"),
    "trackio": ("trackio", "trackio"),
    "wandb": ("wandb", "wandb"),
}
"""Module of each writer that needs another package, and what pip installs."""
