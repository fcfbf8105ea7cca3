"""The check on shapes that all other tests run under finds what it should."""

import dataclasses

import jax.numpy as jnp
import pytest
import shapes
from jaxtyping import Array, Float, TypeCheckError

from sphere.algos.ppo_equations import gae


@shapes.jaxtyped(typechecker=shapes.check)
def product(a: Float[Array, "n m"], b: Float[Array, "m k"]) -> Float[Array, "n k"]:
    return (a @ b).T if a.shape == (3, 2) else a @ b


@shapes.jaxtyped(typechecker=shapes.check)
@dataclasses.dataclass
class Pair:
    one: Float[Array, "n"]
    other: Float[Array, "n"]

    @property
    @shapes.jaxtyped(typechecker=shapes.check)
    def length(self) -> int:
        return len(self.one) if len(self.one) else "none"  # type: ignore[return-value]


def test_axes_of_one_name_have_one_size_in_a_call():
    assert product(jnp.ones((2, 4)), jnp.ones((4, 3))).shape == (2, 3)
    assert product(jnp.ones((1, 5)), jnp.ones((5, 3))).shape == (1, 3)  # a call does not bind the next
    assert Pair(jnp.ones(2), jnp.ones(2)).length == 2
    for wrong in (
        lambda: product(jnp.ones((2, 4)), jnp.ones((3, 4))),
        lambda: product(jnp.ones((2, 4)), jnp.ones((4, 3), int)),
        lambda: product(jnp.ones((3, 2)), jnp.ones((2, 4))),  # the result
        lambda: Pair(jnp.ones(2), jnp.ones(3)),
        lambda: Pair(jnp.ones(0), jnp.ones(0)).length,
    ):
        with pytest.raises(TypeCheckError):
            wrong()


def test_functions_of_the_package_are_checked():
    one, two = jnp.ones(1), jnp.ones(2)
    assert gae(two, two, two, two, two).shape == (2,)
    for wrong in ((two, two, one, two, two), (two, two, two, two, "0.9"), (two, two, two, two, jnp.ones(2, int))):
        with pytest.raises(TypeCheckError):
            gae(*wrong)
