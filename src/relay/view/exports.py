"""What the package gives to others."""

from relay.view.comparison import Comparison, compare
from relay.view.limits import Limits, machine_limits
from relay.view.profiler import Profile, profile
from relay.view.rooflines import roofline
from relay.view.traces import trace

__all__ = ["Comparison", "Limits", "Profile", "compare", "machine_limits", "profile", "roofline", "trace"]
