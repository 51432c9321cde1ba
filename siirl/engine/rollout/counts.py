"""Work counters of an engine."""

from dataclasses import asdict, dataclass, fields


@dataclass
class EngineCounts:
    """Counters since the last `take`."""

    busy_s: float = 0.0
    """Seconds in forward passes."""
    calls: int = 0
    """Requests."""
    forward_passes: int = 0
    tokens: int = 0
    """Generated."""

    def take(self) -> dict[str, float]:
        """Return all counts and reset them."""
        taken = {name: float(value) for name, value in asdict(self).items()}
        for field in fields(self):
            setattr(self, field.name, field.default)
        return taken
