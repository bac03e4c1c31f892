"""Methods: each is a recipe over gradients, in a file of its own that is mostly its equation."""

from smg.methods.a_gem import AGEM
from smg.methods.base import METHODS, Method, find_method, register
from smg.methods.c_meta import CMeta
from smg.methods.der import DER
from smg.methods.ewc import EWC
from smg.methods.finetune import FineTune
from smg.methods.g_meta import GMeta
from smg.methods.gem import GEM
from smg.methods.isgm import ISGM
from smg.methods.jm import JM
from smg.methods.lwf import LwF
from smg.methods.mas import MAS
from smg.methods.per_site import PerSite
from smg.methods.pooled import Pooled
from smg.methods.sga import SGA
from smg.methods.sga_direct import SGADirect
from smg.methods.step import Step, take_step

__all__ = [
    "AGEM",
    "DER",
    "EWC",
    "GEM",
    "ISGM",
    "JM",
    "MAS",
    "METHODS",
    "SGA",
    "CMeta",
    "FineTune",
    "GMeta",
    "LwF",
    "Method",
    "PerSite",
    "Pooled",
    "SGADirect",
    "Step",
    "find_method",
    "register",
    "take_step",
]
