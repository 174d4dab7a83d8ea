"""What the package gives to others."""

from relay.te.autodiff.forward import jvp
from relay.te.autodiff.gather import summed_at
from relay.te.autodiff.reverse import vjp
from relay.te.autodiff.scalar import NotDifferentiable

__all__ = ["NotDifferentiable", "jvp", "summed_at", "vjp"]
