"""Whether an engine's parts can work together: asked when it is made, not in the decode loop."""

from __future__ import annotations

from typing import get_args

from specgrammar.config import Config
from specgrammar.errors import ConfigError, PluginError
from specgrammar.protocols.grammar import GrammarBackend
from specgrammar.protocols.spec import Needs, SpecAlgorithm, TreeProducer
from specgrammar.protocols.target import TargetModel
from specgrammar.spec.accept import check_acceptance


def check_parts(backend: GrammarBackend, algorithm: SpecAlgorithm, target: TargetModel, config: Config) -> None:
    """Raises ConfigError for what cannot work: acceptance, depth of rollback, batch size."""
    check_acceptance(config.acceptance, algorithm.proposal)
    _check_rollback(backend, algorithm, config)
    _check_batch_size(target, config)


def deepest_undo(algorithm: SpecAlgorithm, config: Config) -> int:
    """Most tokens that a step takes back: lazy masking moves over the bonus token, too, and commits later."""
    return algorithm.topology.max_depth + (config.mask_policy != "eager")


def _check_rollback(backend: GrammarBackend, algorithm: SpecAlgorithm, config: Config) -> None:
    limit = backend.facts.max_rollback
    depth = deepest_undo(algorithm, config)
    if limit is not None and depth > limit:
        raise ConfigError(
            f"backend {config.backend!r} can undo {limit} tokens, but algorithm {config.algorithm!r} drafts "
            f"{algorithm.topology.max_depth} deep and mask policy {config.mask_policy!r} needs {depth}; lower "
            "the depth, take the policy 'eager' or use another backend"
        )


def _check_batch_size(target: TargetModel, config: Config) -> None:
    limit = target.max_batch_size
    if limit is not None and config.max_batch_size > limit:
        raise ConfigError(
            f"max_batch_size = {config.max_batch_size}, but the target was loaded for {limit} requests; "
            "load it for as many, or lower max_batch_size"
        )


def checked_producer(producer: TreeProducer, name: str) -> TreeProducer:
    """The producer, if it has what a step asks of it; raises PluginError with the algorithm's name."""
    needs, known = getattr(producer, "needs", None), get_args(Needs)
    if needs not in known:
        raise PluginError(f"algorithm {name!r}: its producer's needs is {needs!r}; expected one of {known}")
    for member in ("propose", "observe"):
        if not callable(getattr(producer, member, None)):
            raise PluginError(f"algorithm {name!r}: its producer has no method {member}")
    return producer
