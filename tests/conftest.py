"""Set-up shared by all tests: shape checks on, silent broadcasting off, float64 on request."""

import os
from importlib.metadata import version
from pathlib import Path

# Compiling is most of what tests do: with less optimisation, large programs shared between processes and with the next run.
if version("jaxlib").startswith("0.10."):  # a later one may not know these, and leaves where it does not
    QUICKLY = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = f"{QUICKLY} {os.environ.get('XLA_FLAGS', '')}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".xla_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
# Many processes share a GPU, each of which would take three quarters of its memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import hypothesis
import jax
import processes
import pytest
from jaxtyping import install_import_hook

# From here on every annotated function of the package checks its array shapes when it is called.
install_import_hook("sphere", "shapes.check").__enter__()

jax.config.update("jax_numpy_rank_promotion", "raise")
# On a GPU float32 products default to TF32, ten bits short of the references.
jax.config.update("jax_default_matmul_precision", "highest")


# Neither is a machine that is busy a failure.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True)
def nothing_outlives_its_test():
    """Also not what a test that failed has started."""
    yield
    processes.end_all()


@pytest.fixture
def x64():
    """Double precision inside the test, for comparisons at 1e-10 and below."""
    with jax.enable_x64(True):
        yield
