"""How much an oracle tries: little by default, the same each time; much and ever new under `deep`."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

DEEPER = 20
"""So many times as many cases under the profile `deep`."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)


def effort(examples: int, steps: int) -> settings:
    """Settings for so many examples of so many steps."""
    is_deep = settings.get_current_profile_name() == "deep"
    return settings(
        max_examples=examples * DEEPER if is_deep else examples,
        stateful_step_count=steps,
        derandomize=not is_deep,
        database=None,
        deadline=None,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
        print_blob=is_deep,
    )
