"""Every method is a recipe over gradients: one file each, mostly its equation."""

from smg.methods.base import METHODS, Method, Recipe, recipe, register
from smg.methods.c_meta import CMeta
from smg.methods.finetune import FineTune
from smg.methods.g_meta import GMeta
from smg.methods.gem import GEM
from smg.methods.isgm import ISGM
from smg.methods.jm import JM
from smg.methods.per_site import PerSite
from smg.methods.pooled import Pooled
from smg.methods.sga import SGA
from smg.methods.sga_direct import SGADirect
from smg.methods.step import Step, take_step

__all__ = [
    "GEM",
    "ISGM",
    "JM",
    "METHODS",
    "SGA",
    "CMeta",
    "FineTune",
    "GMeta",
    "Method",
    "PerSite",
    "Pooled",
    "Recipe",
    "SGADirect",
    "Step",
    "recipe",
    "register",
    "take_step",
]
