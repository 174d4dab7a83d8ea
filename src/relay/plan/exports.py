"""What the package gives to others."""

from relay.plan.graph import PlanError, TeGraph, te_graph
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.plan.key import PlanKey, plan_key
from relay.plan.operands import Pack

__all__ = ["KernelPlan", "Pack", "PlanError", "PlanKey", "TeGraph", "make_plan", "plan_key", "te_graph"]
