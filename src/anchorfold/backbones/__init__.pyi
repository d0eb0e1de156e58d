from .base import CausalBackboneWarning as CausalBackboneWarning
from .base import PromptedRetriever as PromptedRetriever
from .base import Retriever as Retriever
from .loading import load as load
from .multivector import attach as attach
from .multivector import detach as detach
