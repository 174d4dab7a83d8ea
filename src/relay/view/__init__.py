"""Looking at programs from outside: profiles, rooflines, traces, the machine's limits, other systems beside ours."""

from relay.view.compare import Comparison, compare
from relay.view.limits import Limits, machine_limits
from relay.view.profile import Profile, profile
from relay.view.roofline import roofline
from relay.view.trace import trace

__all__ = ["Comparison", "Limits", "Profile", "compare", "machine_limits", "profile", "roofline", "trace"]
