"""What the package gives to others."""

from relay.transform.ad.gradient import Gradient
from relay.transform.attention import FuseAttention
from relay.transform.base import (
    Observer,
    Pass,
    PassError,
    Pipeline,
    StepReport,
    available_passes,
    make_pass,
    parse_passes,
)
from relay.transform.batching.structure import BatchStructure
from relay.transform.compositions import ExpandCompositions
from relay.transform.cotangents import JoinCotangents
from relay.transform.cse import CommonSubexpressions
from relay.transform.dead_code import DeadCode, DeadFunctions
from relay.transform.dead_references import DeadReferences
from relay.transform.defunctionalise import Defunctionalise
from relay.transform.distribute import DistributeLoops
from relay.transform.early_fields import EarlyFields
from relay.transform.einsums import SplitEinsums
from relay.transform.eta import EtaExpand
from relay.transform.fix_invariants import FixInvariants
from relay.transform.fold_cases import FoldCases
from relay.transform.fold_constants import FoldConstants
from relay.transform.fold_maps import FoldMaps
from relay.transform.fold_terms import FoldTerms
from relay.transform.fuse import FuseOps
from relay.transform.gather_late import GatherLate
from relay.transform.gather_sums import GatherSums
from relay.transform.grow import GrowState
from relay.transform.hoist import HoistOverTime
from relay.transform.inline import Inline
from relay.transform.lambda_lift import LambdaLift
from relay.transform.layouts import Layouts
from relay.transform.match_trees import CompileMatch
from relay.transform.merge_dims import MergeDims
from relay.transform.multiply_once import MultiplyOnce
from relay.transform.name_dims import NameDims
from relay.transform.parallel_fusion import ParallelFusion
from relay.transform.partial_eval import PartialEvaluate
from relay.transform.precision import ReducePrecision
from relay.transform.recompute import Recompute
from relay.transform.rematerialise import MemoryBudgetError, Rematerialise
from relay.transform.room import RoomForRows
from relay.transform.row_views import RowViews
from relay.transform.rows_in_place import RowsInPlace
from relay.transform.shared_sizes import ShareSizes
from relay.transform.simplify import Simplify
from relay.transform.sink import Sink
from relay.transform.skip_empty import SkipEmpty
from relay.transform.slice_early import SliceEarly
from relay.transform.softmaxes import FindSoftmax
from relay.transform.specialise import Specialise
from relay.transform.stack_items import StackItems
from relay.transform.sum_fusion import SumFusion
from relay.transform.to_blocks import ToBlocks
from relay.transform.trim import DropIdentities, DropUnread
from relay.transform.unfused import unfused_attentions

__all__ = [
    "BatchStructure",
    "CommonSubexpressions",
    "CompileMatch",
    "DeadCode",
    "DeadFunctions",
    "DeadReferences",
    "Defunctionalise",
    "DistributeLoops",
    "DropIdentities",
    "DropUnread",
    "EarlyFields",
    "EtaExpand",
    "ExpandCompositions",
    "FindSoftmax",
    "FixInvariants",
    "FoldCases",
    "FoldConstants",
    "FoldMaps",
    "FoldTerms",
    "FuseAttention",
    "FuseOps",
    "GatherLate",
    "GatherSums",
    "Gradient",
    "GrowState",
    "HoistOverTime",
    "Inline",
    "JoinCotangents",
    "LambdaLift",
    "Layouts",
    "MemoryBudgetError",
    "MergeDims",
    "MultiplyOnce",
    "NameDims",
    "Observer",
    "ParallelFusion",
    "PartialEvaluate",
    "Pass",
    "PassError",
    "Pipeline",
    "Recompute",
    "ReducePrecision",
    "Rematerialise",
    "RoomForRows",
    "RowViews",
    "RowsInPlace",
    "ShareSizes",
    "Simplify",
    "Sink",
    "SkipEmpty",
    "SliceEarly",
    "Specialise",
    "SplitEinsums",
    "StackItems",
    "StepReport",
    "SumFusion",
    "ToBlocks",
    "available_passes",
    "make_pass",
    "parse_passes",
    "unfused_attentions",
]
